//! Little-endian cursors: a checked reader, and sinks that the encoders write to.

use base::{LeaderEpoch, Offset, PartitionId, PartitionIndex, Position, Tenancy, TopicId, Uuid};

/// Bytes from a medium do not have the layout they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes do not have the layout of what they should be")]
pub struct Malformed;

/// Where an encoder writes.
pub trait Sink {
    fn put(&mut self, bytes: &[u8]);

    fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }
    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    fn i16(&mut self, value: i16) {
        self.put(&value.to_le_bytes());
    }
    fn i32(&mut self, value: i32) {
        self.put(&value.to_le_bytes());
    }
    fn i64(&mut self, value: i64) {
        self.put(&value.to_le_bytes());
    }
    fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }
    fn uuid(&mut self, value: Uuid) {
        self.put(&value.to_bytes());
    }
    fn offset(&mut self, value: Offset) {
        self.i64(value.0);
    }
    fn position(&mut self, value: Position) {
        self.u64(value.0);
    }
    fn tenancy(&mut self, value: Tenancy) {
        self.u64(value.0);
    }
    fn epoch(&mut self, value: LeaderEpoch) {
        self.i32(value.0);
    }
    fn partition(&mut self, value: PartitionId) {
        self.uuid(value.topic.0);
        self.i32(value.index.0);
    }
    /// A count of things that are held in memory, so it fits.
    fn count(&mut self, value: usize) {
        self.u32(u32::try_from(value).expect("fewer than 2^32 entries are held in memory"));
    }
    fn bytes(&mut self, value: &[u8]) {
        self.count(value.len());
        self.put(value);
    }
    fn option<T>(&mut self, value: &Option<T>, put: impl FnOnce(&mut Self, &T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }
    fn list<T>(&mut self, values: &[T], mut put: impl FnMut(&mut Self, &T)) {
        self.count(values.len());
        for value in values {
            put(self, value);
        }
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts what an encoder would write.
#[derive(Default)]
pub struct Length(pub usize);

impl Sink for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// Writes into a slice whose length was counted before; overrunning it is a bug.
pub struct SliceSink<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> SliceSink<'a> {
    pub fn new(bytes: &'a mut [u8]) -> SliceSink<'a> {
        SliceSink { bytes, at: 0 }
    }

    pub fn at(&self) -> usize {
        self.at
    }
}

impl Sink for SliceSink<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// Reads what a sink wrote; every step may find that the bytes are not that.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

macro_rules! numbers {
    ($($name:ident: $type:ty),*) => {$(
        pub fn $name(&mut self) -> Result<$type, Malformed> {
            self.array().map(<$type>::from_le_bytes)
        }
    )*};
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(Malformed)?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or(Malformed)?;
        self.bytes = rest;
        Ok(*taken)
    }

    numbers!(u8: u8, u16: u16, u32: u32, u64: u64, i16: i16, i32: i32, i64: i64);

    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub fn uuid(&mut self) -> Result<Uuid, Malformed> {
        self.array().map(Uuid::from_bytes)
    }

    pub fn offset(&mut self) -> Result<Offset, Malformed> {
        self.i64().map(Offset)
    }

    pub fn position(&mut self) -> Result<Position, Malformed> {
        self.u64().map(Position)
    }

    pub fn tenancy(&mut self) -> Result<Tenancy, Malformed> {
        self.u64().map(Tenancy)
    }

    pub fn epoch(&mut self) -> Result<LeaderEpoch, Malformed> {
        self.i32().map(LeaderEpoch)
    }

    pub fn partition(&mut self) -> Result<PartitionId, Malformed> {
        Ok(PartitionId { topic: TopicId(self.uuid()?), index: PartitionIndex(self.i32()?) })
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    pub fn option<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// Every entry takes at least a byte, so a garbage count cannot make this allocate more than the bytes hold.
    pub fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Result<T, Malformed>) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > self.bytes.len() {
            return Err(Malformed);
        }
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(read(self)?);
        }
        Ok(values)
    }

    /// The end: nothing but zeroes follows.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.bytes.iter().all(|b| *b == 0) { Ok(()) } else { Err(Malformed) }
    }
}
