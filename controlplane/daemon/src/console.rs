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
use tokio::net::TcpListener;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{Semaphore, oneshot};

/// Connections served at once; others wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 16;
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// For a whole conversation.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Answered by the loop with the state of everything.
pub(crate) type Question = oneshot::Sender<(Status, OwnMetrics)>;

/// Starts listening, where an address is given. Questions come out.
pub(crate) async fn start(address: Option<SocketAddr>, counters: PathBuf) -> Result<Receiver<Question>, DaemonError> {
    let (ask, questions) = channel(CONNECTIONS_MAX);
    if let Some(address) = address {
        let listener = TcpListener::bind(address).await.map_err(|error| DaemonError::Console { address, error })?;
        tracing::info!(address = %listener.local_addr()?, "the console listens");
        tokio::spawn(accept(listener, ask, counters.into()));
    }
    Ok(questions)
}

async fn accept(listener: TcpListener, ask: Sender<Question>, counters: Arc<Path>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((mut stream, _)) => {
                let (ask, counters) = (ask.clone(), Arc::clone(&counters));
                tokio::spawn(async move {
                    // Its time is bounded, and what goes wrong on it is the client's to see.
                    let _outcome = tokio::time::timeout(TIME_MAX, converse(&mut stream, &ask, &counters)).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the console cannot accept");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
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
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if with_body {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
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
