//! The console: HTTP/1.1, read only, a request a connection. `/metrics` for Prometheus, `/ready` for whoever waits for the
//! node.

use crate::DaemonError;
use crate::metrics::{self, OwnMetrics};
use node::Status;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Connections served at once; others wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 16;
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// For a whole conversation.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Answered by the loop with the state of everything.
pub(crate) type Question = oneshot::Sender<(Status, OwnMetrics)>;

/// Where the console is: on a port of its own, or on a socket behind the supervisor, which holds the port so that metrics
/// are answered while the control plane is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Console {
    Port(SocketAddr),
    Socket(PathBuf),
}

enum Listener {
    Port(TcpListener),
    Socket(UnixListener),
}

/// Starts listening, where an address is given. Questions come out.
pub(crate) async fn start(address: Option<Console>, counters: PathBuf) -> Result<Receiver<Question>, DaemonError> {
    let (ask, questions) = channel(CONNECTIONS_MAX);
    let listener = match address {
        None => return Ok(questions),
        Some(Console::Port(address)) => {
            let failed = |error| DaemonError::Console { address: address.to_string(), error };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            tracing::info!(address = %listener.local_addr()?, "the console listens");
            Listener::Port(listener)
        }
        Some(Console::Socket(path)) => {
            // A predecessor that was killed leaves its socket behind; there is one control plane at a time.
            if let Err(error) = std::fs::remove_file(&path)
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(DaemonError::Console { address: path.display().to_string(), error });
            }
            let failed = |error| DaemonError::Console { address: path.display().to_string(), error };
            Listener::Socket(UnixListener::bind(&path).map_err(failed)?)
        }
    };
    tokio::spawn(accept(listener, ask, counters.into()));
    Ok(questions)
}

async fn accept(listener: Listener, ask: Sender<Question>, counters: Arc<Path>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
        let (ask, counters) = (ask.clone(), Arc::clone(&counters));
        let accepted = match &listener {
            Listener::Port(listener) => listener.accept().await.map(|(stream, _)| serve(stream, permit, ask, counters)),
            Listener::Socket(listener) => {
                listener.accept().await.map(|(stream, _)| serve(stream, permit, ask, counters))
            }
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "the console cannot accept");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn serve<S>(mut stream: S, permit: OwnedSemaphorePermit, ask: Sender<Question>, counters: Arc<Path>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        // Its time is bounded, and what goes wrong on it is the client's to see.
        let _outcome = tokio::time::timeout(TIME_MAX, converse(&mut stream, &ask, &counters)).await;
        drop(permit);
    });
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    ask: &Sender<Question>,
    counters: &Path,
) -> std::io::Result<()> {
    let Some(head) = read_head(stream).await? else {
        return answer(stream, true, "431 Request Header Fields Too Large", "the request is too long\n").await;
    };
    let (method, path) = request_line(&head);
    let with_body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return answer(stream, true, "405 Method Not Allowed", "only GET and HEAD\n").await,
    };
    let (status, body) = match path {
        "/metrics" | "/ready" => {
            let (reply, state) = oneshot::channel();
            if ask.send(reply).await.is_err() {
                return Ok(());
            }
            match state.await {
                Ok((status, own)) if path == "/metrics" => ("200 OK", metrics::metrics(&status, &own, counters)),
                Ok((status, _)) => ready(&status),
                Err(_) => return Ok(()),
            }
        }
        "/" => ("200 OK", "/metrics\n/ready\n".to_owned()),
        _ => ("404 Not Found", "there is nothing here\n".to_owned()),
    };
    answer(stream, with_body, status, &body).await
}

fn ready(status: &Status) -> (&'static str, String) {
    if status.ready {
        return ("200 OK", "ready\n".to_owned());
    }
    let why = match (status.active_controller, status.link_up) {
        (false, _) => "the metadata quorum has no leader",
        (true, false) => "the dataplane is not connected",
        (true, true) => "the dataplane is being brought up to date",
    };
    ("503 Service Unavailable", format!("{why}\n"))
}

/// Everything up to the empty line; `None` where it does not come within the limit.
async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> std::io::Result<Option<Vec<u8>>> {
    let mut head = Vec::with_capacity(1024);
    while head.len() < REQUEST_BYTES_MAX {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(Some(head));
        }
        if head.windows(4).any(|four| four == b"\r\n\r\n") || head.windows(2).any(|two| two == b"\n\n") {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// Method and path, without a query.
fn request_line(head: &[u8]) -> (&str, &str) {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split_ascii_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    (method, target.split('?').next().unwrap_or_default())
}

async fn answer<S: AsyncWrite + Unpin>(
    stream: &mut S,
    with_body: bool,
    status: &str,
    body: &str,
) -> std::io::Result<()> {
    stream.write_all(http_answer(status, body, with_body).as_bytes()).await?;
    stream.shutdown().await
}

/// A whole HTTP answer of text.
pub fn http_answer(status: &str, body: &str, with_body: bool) -> String {
    let shown = if with_body { body } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{shown}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_line_is_read_whatever_it_is() {
        assert_eq!(request_line(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"), ("GET", "/metrics"));
        assert_eq!(request_line(b""), ("", ""));
        assert_eq!(request_line(b"GET"), ("GET", ""));
        assert_eq!(request_line(&[0xFF, b'\n']), ("", ""));
    }
}
