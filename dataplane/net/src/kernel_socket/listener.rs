//! A listening socket, of either family: taking clients, and not spinning when the system has none to give.

use super::SocketOptions;
use super::socket::KernelSocket;
use crate::ListenError;
use base::{Monotonic, Now};
use mio::event::Source;
use mio::net::{TcpListener, UnixListener};
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockRef, Type};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// After a failed accept: the client stays in the queue, and trying at once would fail at once.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Clients that gave up while they waited, skipped in one call.
const GONE_MAX: usize = 64;

pub(crate) struct Listener {
    socket: ListeningSocket,
    /// Clients may be waiting, as far as we know.
    pub(crate) ready: bool,
    pub(crate) paused: bool,
    retry_at: Option<Monotonic>,
    last_looked: Monotonic,
}

enum ListeningSocket {
    Tcp(TcpListener),
    /// The path is removed with the listener.
    Local(UnixListener, PathBuf),
}

pub(crate) enum Accepted {
    Tcp(KernelSocket, SocketAddr),
    Local(KernelSocket),
    Failed(io::Error),
}

impl Listener {
    pub(crate) fn bind(address: SocketAddr, options: &SocketOptions) -> Result<(Listener, SocketAddr), ListenError> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(ListenError::System)?;
        let prepare = || {
            // A restart must not wait until connections of the last run have left TIME_WAIT.
            socket.set_reuse_address(true)?;
            if address.is_ipv6() {
                // As the JVM does: the wildcard takes both families.
                socket.set_only_v6(false)?;
            }
            // Accepted sockets inherit the receive buffer, and TCP chooses its window scale by it.
            if let Some(bytes) = options.receive_buffer {
                socket.set_recv_buffer_size(bytes)?;
            }
            socket.set_nonblocking(true)
        };
        prepare().map_err(ListenError::System)?;
        socket.bind(&address.into()).map_err(ListenError::Address)?;
        socket.listen(options.backlog).map_err(ListenError::Address)?;
        let listener = TcpListener::from_std(socket.into());
        let address = listener.local_addr().map_err(ListenError::System)?;
        Ok((Listener::new(ListeningSocket::Tcp(listener)), address))
    }

    pub(crate) fn bind_local(path: &Path) -> Result<Listener, ListenError> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left_over(path) => {
                std::fs::remove_file(path).map_err(ListenError::Address)?;
                UnixListener::bind(path)
            }
            result => result,
        };
        let listener = listener.map_err(ListenError::Address)?;
        // Whoever may connect is trusted: only this user.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(ListenError::System)?;
        Ok(Listener::new(ListeningSocket::Local(listener, path.to_owned())))
    }

    fn new(socket: ListeningSocket) -> Listener {
        Listener { socket, ready: false, paused: false, retry_at: None, last_looked: Monotonic::ZERO }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let source: &mut dyn Source = match &mut self.socket {
            ListeningSocket::Tcp(listener) => listener,
            ListeningSocket::Local(listener, _) => listener,
        };
        source.register(registry, token, Interest::READABLE)
    }

    /// The next client; none where none waits or the listener pauses.
    pub(crate) fn accept(&mut self, now: Now, options: &SocketOptions) -> Option<Accepted> {
        self.last_looked = now.monotonic;
        if self.retry_at.is_some_and(|at| at > now.monotonic) || self.paused || !self.ready {
            return None;
        }
        self.retry_at = None;
        for _ in 0..GONE_MAX {
            match self.accept_once(options) {
                Ok(accepted) => return Some(accepted),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.ready = false;
                        return None;
                    }
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => {
                        self.retry_at = Some(now.monotonic + RETRY_PAUSE);
                        return Some(Accepted::Failed(error));
                    }
                },
            }
        }
        None
    }

    fn accept_once(&self, options: &SocketOptions) -> io::Result<Accepted> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                // They fail where the client has gone again, which the first receive tells.
                let _ = stream.set_nodelay(true);
                let socket = SockRef::from(&stream);
                let _ = socket.set_keepalive(true);
                if let Some(bytes) = options.send_buffer {
                    let _ = socket.set_send_buffer_size(bytes);
                }
                Ok(Accepted::Tcp(KernelSocket::Tcp(stream), peer))
            }
            ListeningSocket::Local(listener, _) => {
                let (stream, _) = listener.accept()?;
                Ok(Accepted::Local(KernelSocket::Local(stream)))
            }
        }
    }

    /// When `accept` is worth calling though nothing arrives.
    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        (self.ready && !self.paused).then(|| self.retry_at.unwrap_or(self.last_looked))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let ListeningSocket::Local(_, path) = &self.socket {
            // It may be gone already, with its directory.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether the path is a socket that nobody listens on.
fn is_left_over(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    is_socket
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
