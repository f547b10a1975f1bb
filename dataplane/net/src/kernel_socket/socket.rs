//! A connected socket, of either family.

use crate::stream::Socket;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

#[derive(Debug)]
pub(crate) enum KernelSocket {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl KernelSocket {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            KernelSocket::Tcp(stream) => stream,
            KernelSocket::Local(stream) => stream,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }
}

impl Socket for KernelSocket {
    fn receive(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            KernelSocket::Tcp(stream) => stream.read(into),
            KernelSocket::Local(stream) => stream.read(into),
        }
    }

    fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, pieces) {
            (KernelSocket::Tcp(stream), [piece]) => stream.write(piece),
            (KernelSocket::Tcp(stream), pieces) => stream.write_vectored(pieces),
            (KernelSocket::Local(stream), pieces) => stream.write_vectored(pieces),
        }
    }

    fn finish_sending(&mut self) {
        // It fails only where the connection is over already, which the next receive tells.
        let _ = match self {
            KernelSocket::Tcp(stream) => stream.shutdown(Shutdown::Write),
            KernelSocket::Local(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}
