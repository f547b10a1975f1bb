//! The socket to the dataplane: connects, comes again when it is lost, cuts the stream into messages.

use link::{Down, Framer, Up, frame};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::watch;

/// Messages read and not yet handled; beyond, the socket is not read.
const MESSAGES_MAX: usize = 256;
const READ_BYTES: usize = 64 << 10;
/// Between tries to connect, growing to the second; short, since clients wait for a dataplane that comes back.
const PAUSE_FIRST: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// After a connection that this end closed: trying at once would only fail the same way.
const PAUSE_REFUSED: Duration = Duration::from_secs(1);
/// Bytes that wait for a dataplane that does not read; beyond, the connection is given up.
const QUEUED_BYTES_MAX: usize = 512 << 20;

/// What happens at the socket, in order.
#[derive(Debug)]
pub(crate) enum LinkEvent {
    Connected(Writer),
    Message(Up),
    Lost,
}

/// The sending end of one connection.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: UnboundedSender<Vec<u8>>,
    queued: Arc<AtomicUsize>,
    /// Dropping it, or saying so, ends the connection.
    close: watch::Sender<bool>,
}

impl Writer {
    /// Queues messages. False where the dataplane reads so little that the connection should be given up.
    #[must_use]
    pub fn send(&self, messages: &[Down]) -> bool {
        let mut bytes = Vec::new();
        for message in messages {
            frame::encode(message, &mut bytes);
        }
        let queued = self.queued.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        // A connection that is gone is reported by its reader.
        let _gone = self.bytes.send(bytes);
        queued <= QUEUED_BYTES_MAX
    }

    /// Ends the connection once everything queued is sent.
    pub fn close(self) {
        self.close.send_replace(true);
    }
}

/// Starts the client's task on the current runtime.
pub(crate) fn start(path: PathBuf) -> Receiver<LinkEvent> {
    let (events, inbox) = channel(MESSAGES_MAX);
    tokio::spawn(async move { keep_connected(&path, events).await });
    inbox
}

async fn keep_connected(path: &Path, events: Sender<LinkEvent>) {
    let mut pause = PAUSE_FIRST;
    let mut reported = false;
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => {
                (pause, reported) = (PAUSE_FIRST, false);
                let Ok(refused) = converse(stream, &events).await else { return };
                if refused {
                    tokio::time::sleep(PAUSE_REFUSED).await;
                }
            }
            Err(error) => {
                if !reported {
                    tracing::info!(path = %path.display(), %error, "waiting for the dataplane");
                    reported = true;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Nobody takes the events any more: the process ends.
struct Ended;

/// One connection from its beginning to its end; true where this end closed it.
async fn converse(stream: UnixStream, events: &Sender<LinkEvent>) -> Result<bool, Ended> {
    let (reader, writer) = stream.into_split();
    let (bytes, outbox) = unbounded_channel();
    let (close, mut closed) = watch::channel(false);
    let queued = Arc::new(AtomicUsize::new(0));
    let writing = tokio::spawn(write(writer, outbox, Arc::clone(&queued)));
    send(events, LinkEvent::Connected(Writer { bytes, queued, close })).await?;
    let refused = tokio::select! {
        outcome = read(reader, events) => { outcome?; false }
        // An error is the writer's end being dropped.
        outcome = closed.wait_for(|closed| *closed) => outcome.is_ok(),
    };
    if !refused {
        writing.abort();
    }
    // What was queued before the close is still sent; the queue ends with the writer's other half.
    send(events, LinkEvent::Lost).await?;
    Ok(refused)
}

async fn send(events: &Sender<LinkEvent>, event: LinkEvent) -> Result<(), Ended> {
    events.send(event).await.map_err(|_| Ended)
}

async fn write(mut socket: OwnedWriteHalf, mut outbox: UnboundedReceiver<Vec<u8>>, queued: Arc<AtomicUsize>) {
    while let Some(bytes) = outbox.recv().await {
        // The reader sees the same end and reports it.
        if socket.write_all(&bytes).await.is_err() {
            return;
        }
        queued.fetch_sub(bytes.len(), Ordering::Relaxed);
    }
}

/// Hands messages on until the connection ends.
async fn read(mut socket: OwnedReadHalf, events: &Sender<LinkEvent>) -> Result<(), Ended> {
    let mut framer = Framer::default();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match socket.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(count) => framer.push(&buffer[..count]),
            Err(error) => {
                tracing::warn!(%error, "reading from the dataplane failed");
                return Ok(());
            }
        }
        loop {
            match framer.poll_message::<Up>() {
                Ok(Some(message)) => send(events, LinkEvent::Message(message)).await?,
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "the dataplane said what cannot be read");
                    return Ok(());
                }
            }
        }
    }
}
