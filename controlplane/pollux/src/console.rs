//! The metrics port. It is the supervisor's, so that it answers whatever dies: a request goes on to the control plane's
//! console, and without an answer from there the dataplane's counter pages are served, which need nobody alive.

use crate::processes::{console_path, counters_path};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Semaphore;

/// Requests served at once; others wait in the backlog.
const REQUESTS_MAX: usize = 16;
const REQUEST_BYTES_MAX: usize = 8 << 10;
const TIME_MAX: Duration = Duration::from_secs(6);
/// How long the control plane may take before the dataplane's pages are served instead.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// Serves the port until the supervisor ends.
pub async fn serve(address: SocketAddr, run_dir: PathBuf) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    tracing::info!(address = %listener.local_addr()?, "metrics and readiness");
    let (permits, run_dir): (_, Arc<Path>) = (Arc::new(Semaphore::new(REQUESTS_MAX)), run_dir.into());
    tokio::spawn(async move {
        loop {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, _)) => {
                    let run_dir = Arc::clone(&run_dir);
                    tokio::spawn(async move {
                        // What goes wrong on it is the client's to see.
                        let _outcome = tokio::time::timeout(TIME_MAX, answer(stream, &run_dir)).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "the metrics port cannot accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

async fn answer(mut stream: TcpStream, run_dir: &Path) -> std::io::Result<()> {
    let mut request = Vec::with_capacity(1024);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if request.len() >= REQUEST_BYTES_MAX || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let asked = tokio::time::timeout(ANSWER_TIME_MAX, ask(run_dir, &request)).await;
    let answer = match asked {
        Ok(Ok(answer)) if !answer.is_empty() => answer,
        _ => without_control_plane(&request, run_dir).into_bytes(),
    };
    stream.write_all(&answer).await?;
    stream.shutdown().await
}

/// The control plane's own answer.
async fn ask(run_dir: &Path, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut console = UnixStream::connect(console_path(run_dir)).await?;
    console.write_all(request).await?;
    let mut answer = Vec::new();
    console.read_to_end(&mut answer).await?;
    Ok(answer)
}

fn without_control_plane(request: &[u8], run_dir: &Path) -> String {
    if request.starts_with(b"GET /metrics") {
        let page = daemon::dataplane_metrics(&counters_path(run_dir));
        daemon::http_answer("200 OK", &page, true)
    } else {
        daemon::http_answer("503 Service Unavailable", "the control plane is away\n", true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_control_plane_the_port_still_answers() {
        let folder = crate::processes::temporary_directory().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        serve(free, folder.path().to_owned()).await.unwrap();
        for (path, status) in [("/metrics", "HTTP/1.1 200"), ("/ready", "HTTP/1.1 503")] {
            let mut stream = TcpStream::connect(free).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(status), "{answer}");
        }
    }
}
