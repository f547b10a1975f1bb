//! A raw client: one connection, blocking, a deadline on everything, typed requests or bare frames.

use bytes::{Bytes, BytesMut};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::messages::fetch_request::{FetchPartition, FetchTopic};
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};
use wire::messages::{ApiVersionsRequest, FetchRequest, ProduceRequest};
use wire::{
    ApiKey, DecodeError, Decoder, KafkaString, Message, Request, RequestKind, ResponseKind, read_response_header,
};

/// Frames from a broker above this are taken for garbage: the largest answers here are a few MiB.
const FRAME_MAX: usize = 512 << 20;
pub const CLIENT_ID: &str = "pollux-raw";

/// Why a call has no answer.
#[derive(Debug)]
pub enum CallError {
    /// The broker ended the connection.
    Closed,
    /// The deadline passed. The connection cannot be used any more.
    TimedOut,
    Io(io::Error),
    /// The answer is not what the protocol says.
    Malformed(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Closed => f.write_str("the broker closed the connection"),
            CallError::TimedOut => f.write_str("no answer within the deadline"),
            CallError::Io(error) => write!(f, "{error}"),
            CallError::Malformed(reason) => write!(f, "malformed answer: {reason}"),
        }
    }
}

impl std::error::Error for CallError {}

impl From<DecodeError> for CallError {
    fn from(error: DecodeError) -> CallError {
        CallError::Malformed(error.to_string())
    }
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> CallError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => CallError::TimedOut,
            // A reset is how a close looks while unread bytes of ours are on the way.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => CallError::Closed,
            _ => CallError::Io(error),
        }
    }
}

pub struct Connection {
    stream: TcpStream,
    patience: Duration,
    next_correlation: i32,
    out: BytesMut,
}

impl Connection {
    /// `patience` is the deadline of connecting and of every later call.
    pub fn open(address: SocketAddr, patience: Duration) -> Result<Connection, CallError> {
        Connection::over(TcpStream::connect_timeout(&address, patience)?, patience)
    }

    /// Over a socket that was set up elsewhere.
    pub fn over(stream: TcpStream, patience: Duration) -> Result<Connection, CallError> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Connection { stream, patience, next_correlation: 1, out: BytesMut::new() })
    }

    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Sends a request and waits for its answer.
    pub fn call<R: Request>(&mut self, version: i16, request: &R) -> Result<R::Response, CallError> {
        let correlation = self.send(version, request)?;
        self.receive::<R>(version, correlation)
    }

    /// Sends a request without waiting; returns its correlation id.
    pub fn send<R: Request>(&mut self, version: i16, request: &R) -> Result<i32, CallError> {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).map_err(|e| CallError::Malformed(e.to_string()))?;
        self.send_body(R::API, version, &body)
    }

    /// The same for a request whose type is known at run time only.
    pub fn send_kind(&mut self, version: i16, request: &RequestKind) -> Result<i32, CallError> {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).map_err(|e| CallError::Malformed(e.to_string()))?;
        self.send_body(request.api(), version, &body)
    }

    /// Sends a header of this API and version with any body after it.
    pub fn send_body(&mut self, api: ApiKey, version: i16, body: &[u8]) -> Result<i32, CallError> {
        let correlation = self.next_correlation;
        self.next_correlation = self.next_correlation.wrapping_add(1);
        self.out.clear();
        wire::frame::sized(&mut self.out, |out| {
            wire::put_request_header(out, api, version, correlation, Some(CLIENT_ID))?;
            out.extend_from_slice(body);
            Ok(())
        })
        .map_err(|e| CallError::Malformed(e.to_string()))?;
        self.stream.write_all(&self.out)?;
        Ok(correlation)
    }

    /// Sends bytes as they are, without a frame around them.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        Ok(self.stream.write_all(bytes)?)
    }

    pub fn receive<R: Request>(&mut self, version: i16, correlation: i32) -> Result<R::Response, CallError> {
        let body = self.receive_body(R::API, version, correlation)?;
        let mut d = Decoder::shared(&body);
        let response = R::Response::decode(&mut d, version)?;
        d.finish()?;
        Ok(response)
    }

    pub fn receive_kind(&mut self, api: ApiKey, version: i16, correlation: i32) -> Result<ResponseKind, CallError> {
        let body = self.receive_body(api, version, correlation)?;
        let mut d = Decoder::shared(&body);
        let response = ResponseKind::decode(api, version, &mut d)?;
        d.finish()?;
        Ok(response)
    }

    /// The next frame's body, whose header must be the answer to `correlation`.
    pub fn receive_body(&mut self, api: ApiKey, version: i16, correlation: i32) -> Result<Bytes, CallError> {
        let frame = self.receive_frame()?;
        let mut d = Decoder::shared(&frame);
        let found = read_response_header(&mut d, api, version)?;
        if found != correlation {
            return Err(CallError::Malformed(format!("the answer to {found} came instead of that to {correlation}")));
        }
        Ok(frame.slice(d.position()..))
    }

    pub fn receive_frame(&mut self) -> Result<Bytes, CallError> {
        let until = Instant::now() + self.patience;
        let mut size = [0u8; wire::frame::SIZE_BYTES];
        self.read_all(&mut size, until)?;
        let size = usize::try_from(i32::from_be_bytes(size)).unwrap_or(usize::MAX);
        if size > FRAME_MAX {
            return Err(CallError::Malformed(format!("a frame of {size} bytes")));
        }
        let mut frame = vec![0u8; size];
        self.read_all(&mut frame, until)?;
        Ok(frame.into())
    }

    fn read_all(&mut self, mut into: &mut [u8], until: Instant) -> Result<(), CallError> {
        while !into.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(CallError::TimedOut);
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(into) {
                Ok(0) => return Err(CallError::Closed),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Nothing more will be sent; what the broker still has to say can be read.
    pub fn finish_sending(&mut self) -> Result<(), CallError> {
        Ok(self.stream.shutdown(std::net::Shutdown::Write)?)
    }

    /// The socket once more, for somebody who reads while this one writes.
    pub fn try_clone_stream(&self) -> io::Result<TcpStream> {
        self.stream.try_clone()
    }

    /// For looking at what the socket holds.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// For drivers that poll the socket themselves.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }
}

/// A well-formed ApiVersions request, the first thing any client sends.
pub fn api_versions_request() -> ApiVersionsRequest {
    ApiVersionsRequest {
        client_software_name: KafkaString::from_static(CLIENT_ID),
        client_software_version: KafkaString::from_static("1"),
        ..ApiVersionsRequest::default()
    }
}

/// A Produce of one batch.
pub fn produce_request(topic: &str, partition: i32, records: Bytes, acks: i16, time_max: Duration) -> ProduceRequest {
    let data = PartitionProduceData { index: partition, records: Some(records), ..PartitionProduceData::default() };
    let topic = TopicProduceData { name: KafkaString::from(topic), partition_data: vec![data], ..Default::default() };
    let timeout_ms = time_max.as_millis() as i32;
    ProduceRequest { acks, timeout_ms, topic_data: vec![topic], ..ProduceRequest::default() }
}

/// A consumer's Fetch of one partition by its topic's name, which waits for a first byte.
pub fn fetch_request(topic: &str, partition: i32, offset: i64, bytes_max: i32, wait_max: Duration) -> FetchRequest {
    let partition =
        FetchPartition { partition, fetch_offset: offset, partition_max_bytes: bytes_max, ..FetchPartition::default() };
    let topic = FetchTopic { topic: KafkaString::from(topic), partitions: vec![partition], ..FetchTopic::default() };
    FetchRequest {
        max_wait_ms: wait_max.as_millis() as i32,
        min_bytes: 1,
        max_bytes: bytes_max,
        topics: vec![topic],
        ..FetchRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use wire::messages::{MetadataRequest, MetadataResponse};

    const PATIENCE: Duration = Duration::from_secs(5);

    /// A peer that reads one request frame and then does as it is told.
    fn peer(act: impl FnOnce(TcpStream) + Send + 'static) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut size = [0u8; 4];
            stream.read_exact(&mut size).expect("a size");
            let mut frame = vec![0; i32::from_be_bytes(size) as usize];
            stream.read_exact(&mut frame).expect("a frame");
            act(stream);
        });
        (address, thread)
    }

    #[test]
    fn an_answer_in_pieces_is_read_whole() {
        let (address, thread) = peer(|mut stream| {
            let mut out = BytesMut::new();
            let answer = MetadataResponse { controller_id: 7, ..Default::default() };
            wire::encode_response(&mut out, 12, 1, &answer).expect("it encodes");
            for byte in out {
                stream.write_all(&[byte]).expect("sent");
            }
        });
        let mut connection = Connection::open(address, PATIENCE).expect("connected");
        let answer = connection.call(12, &MetadataRequest::default()).expect("an answer");
        assert_eq!(answer.controller_id, 7);
        thread.join().expect("the peer is done");
    }

    #[test]
    fn a_close_a_wrong_answer_and_silence_are_told_apart() {
        let (address, thread) = peer(drop);
        let mut connection = Connection::open(address, PATIENCE).expect("connected");
        assert!(matches!(connection.call(12, &MetadataRequest::default()), Err(CallError::Closed)));
        thread.join().expect("the peer is done");

        let (address, thread) = peer(|mut stream| {
            let mut out = BytesMut::new();
            wire::encode_response(&mut out, 12, 99, &MetadataResponse::default()).expect("it encodes");
            stream.write_all(&out).expect("sent");
        });
        let mut connection = Connection::open(address, PATIENCE).expect("connected");
        assert!(matches!(connection.call(12, &MetadataRequest::default()), Err(CallError::Malformed(_))));
        thread.join().expect("the peer is done");

        let (address, thread) = peer(|mut stream| {
            // Ends when the client gives up.
            let _ = stream.read(&mut [0u8]);
        });
        let mut connection = Connection::open(address, Duration::from_millis(50)).expect("connected");
        assert!(matches!(connection.call(12, &MetadataRequest::default()), Err(CallError::TimedOut)));
        drop(connection);
        thread.join().expect("the peer is done");
    }
}
