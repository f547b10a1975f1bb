//! Kafka's codecs: which bytes they write and how theirs are read back, streaming and under a cap.
//!
//! Inflating never hands out, nor keeps, more bytes than the cap: the count is taken while the stream runs, so a bomb
//! costs at most the cap. Beside it Zstandard has its window: up to 128 MiB of address space, of which only what was
//! really written becomes resident. A smaller limit would refuse producers at level 22, which Kafka takes.

mod lz4;
mod snappy;

use flate2::bufread::GzDecoder;
use lz4::Lz4Reader;
use snappy::SnappyReader;
use std::io::{Read, Write};

/// What compresses the records of a batch. The numbers are those of the attribute bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

/// The attribute bits name a codec that Kafka does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("codec {0} does not exist")]
pub struct UnknownCodec(pub u8);

impl Codec {
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    pub const fn id(self) -> u8 {
        match self {
            Codec::None => 0,
            Codec::Gzip => 1,
            Codec::Snappy => 2,
            Codec::Lz4 => 3,
            Codec::Zstd => 4,
        }
    }

    pub fn from_id(id: u8) -> Result<Codec, UnknownCodec> {
        Codec::ALL.into_iter().find(|codec| codec.id() == id).ok_or(UnknownCodec(id))
    }

    /// The name in `compression.type`; of no codec it is `uncompressed` there.
    pub const fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Snappy => "snappy",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }
}

/// A codec with the level its topic asks for; `None` is the codec's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Compression {
    pub codec: Codec,
    pub level: Option<i32>,
}

/// gzip's default, which Kafka's setting writes as -1.
const GZIP_LEVEL_DEFAULT: u32 = 6;
const ZSTD_LEVEL_DEFAULT: i32 = 3;

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Compression {
        Compression { codec, level: None }
    }
}

impl Compression {
    pub const NONE: Compression = Compression { codec: Codec::None, level: None };

    /// Appends the compressed form of `raw` to `out`. The LZ4 level changes nothing: lz4_flex has one encoder, and the
    /// level is a wish about size, not part of the format.
    pub fn compress(self, raw: &[u8], out: &mut Vec<u8>) {
        match self.codec {
            Codec::None => out.extend_from_slice(raw),
            Codec::Gzip => {
                let level = self.level.and_then(|l| u32::try_from(l).ok()).map_or(GZIP_LEVEL_DEFAULT, |l| l.min(9));
                let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(level));
                encoder.write_all(raw).and_then(|()| encoder.finish()).expect("writing to memory does not fail");
            }
            Codec::Snappy => snappy::compress(raw, out),
            Codec::Lz4 => lz4::compress(raw, out),
            Codec::Zstd => {
                // In one piece, so that the frame names its content size and a reader need not reserve a whole window.
                let level = self.level.unwrap_or(ZSTD_LEVEL_DEFAULT);
                let packed = zstd::bulk::compress(raw, level).expect("the output is as large as it may have to be");
                out.extend_from_slice(&packed);
            }
        }
    }
}

/// Why compressed bytes were not inflated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InflateError {
    #[error("the batch inflates to more than {cap} bytes")]
    TooLarge { cap: usize },
    #[error("the bytes are not {}: {reason}", .codec.name())]
    Corrupt { codec: Codec, reason: String },
}

/// What the readers of frames say; the codec's name and the cap are added above them.
enum FrameError {
    TooLarge,
    Corrupt(&'static str),
}

/// The largest Zstandard window taken: the library's own default, and so zstd-jni's in Kafka.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

enum Source<'a> {
    Plain(&'a [u8]),
    Gzip(Box<GzDecoder<&'a [u8]>>),
    Snappy(SnappyReader<'a>),
    Lz4(Lz4Reader<'a>),
    Zstd(zstd::stream::read::Decoder<'static, &'a [u8]>),
    Finished,
}

/// From here on a stream lets other threads of its CPU go first after each step: what inflates so much is no usual batch,
/// and a helper that keeps its CPU for a whole slice of the scheduler (up to 4.6 ms, seen) holds up the flushes that
/// everybody's acknowledgements wait for where they have to share that CPU. Lower niceness and a longer slice for the
/// helper did not help; nothing of this is ever inflated on a loop.
const GIVES_WAY_FROM: usize = 1 << 20;
const GIVES_WAY_EVERY: usize = 128 << 10;

/// Compressed bytes as a stream of at most `cap` inflated ones.
pub struct Inflater<'a> {
    codec: Codec,
    source: Source<'a>,
    given: usize,
    cap: usize,
}

impl<'a> Inflater<'a> {
    pub fn new(codec: Codec, bytes: &'a [u8], cap: usize) -> Result<Inflater<'a>, InflateError> {
        let corrupt = |reason: String| InflateError::Corrupt { codec, reason };
        let source = match codec {
            Codec::None => Source::Plain(bytes),
            Codec::Gzip => Source::Gzip(Box::new(GzDecoder::new(bytes))),
            Codec::Snappy => Source::Snappy(SnappyReader::new(bytes).map_err(|reason| corrupt(reason.into()))?),
            Codec::Lz4 => Source::Lz4(Lz4Reader::new(bytes).map_err(|reason| corrupt(reason.into()))?),
            // No frame at all is an empty stream, as in zstd-jni.
            Codec::Zstd if bytes.is_empty() => Source::Finished,
            Codec::Zstd => {
                let mut decoder =
                    zstd::stream::read::Decoder::with_buffer(bytes).map_err(|error| corrupt(error.to_string()))?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(|error| corrupt(error.to_string()))?;
                Source::Zstd(decoder)
            }
        };
        Ok(Inflater { codec, source, given: 0, cap })
    }

    /// Inflated bytes given out so far.
    pub fn given(&self) -> usize {
        self.given
    }

    /// Fills the front of `out` and returns how much; 0 is the end, for good.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, InflateError> {
        if out.is_empty() {
            return Ok(0);
        }
        let (codec, cap) = (self.codec, self.cap);
        let allowed = cap - self.given;
        let corrupt = |reason: String| InflateError::Corrupt { codec, reason };
        let framed = |error| match error {
            FrameError::TooLarge => InflateError::TooLarge { cap },
            FrameError::Corrupt(reason) => corrupt(reason.into()),
        };
        let read = match &mut self.source {
            Source::Finished => Ok(0),
            Source::Plain(bytes) => bytes.read(out),
            Source::Gzip(decoder) => read_gzip(decoder, out),
            Source::Zstd(decoder) => decoder.read(out),
            Source::Snappy(reader) => Ok(reader.read(out, allowed).map_err(framed)?),
            Source::Lz4(reader) => Ok(reader.read(out, allowed).map_err(framed)?),
        };
        let count = read.map_err(|error| corrupt(error.to_string()))?;
        if count > allowed {
            return Err(InflateError::TooLarge { cap });
        }
        if count == 0 {
            // A second frame after the end of one is not read: Kafka's readers stop there too.
            self.source = Source::Finished;
        }
        if self.given >= GIVES_WAY_FROM && self.given / GIVES_WAY_EVERY != (self.given + count) / GIVES_WAY_EVERY {
            std::thread::yield_now();
        }
        self.given += count;
        Ok(count)
    }
}

/// gzip members may follow each other (RFC 1952, 2.2); what is no member after one is ignored, as Java does.
fn read_gzip(decoder: &mut GzDecoder<&[u8]>, out: &mut [u8]) -> std::io::Result<usize> {
    loop {
        let read = decoder.read(out)?;
        let rest: &[u8] = decoder.get_ref();
        if read > 0 || !rest.starts_with(&[0x1F, 0x8B]) {
            return Ok(read);
        }
        let rest = *decoder.get_ref();
        *decoder = GzDecoder::new(rest);
    }
}

/// The first reservation when inflating: most batches inflate to less than this times their size.
const USUAL_RATIO: usize = 4;
const CHUNK: usize = 16 * 1024;

/// Everything `bytes` inflates to, at most `cap` bytes.
pub fn inflate(codec: Codec, bytes: &[u8], cap: usize) -> Result<Vec<u8>, InflateError> {
    if codec == Codec::None {
        return if bytes.len() > cap { Err(InflateError::TooLarge { cap }) } else { Ok(bytes.to_vec()) };
    }
    let mut inflater = Inflater::new(codec, bytes, cap)?;
    let mut out = Vec::with_capacity(bytes.len().saturating_mul(USUAL_RATIO).min(cap));
    loop {
        let start = out.len();
        grow(&mut out, cap);
        let read = inflater.read(&mut out[start..])?;
        out.truncate(start + read);
        if read == 0 {
            return Ok(out);
        }
    }
}

/// Lengthens a buffer for the next read, never beyond one byte more than the cap (the byte that shows it is passed).
pub(crate) fn grow(buffer: &mut Vec<u8>, cap: usize) {
    let most = cap.saturating_add(1);
    let spare = buffer.capacity() - buffer.len();
    let step = if spare >= CHUNK { CHUNK } else { buffer.len().clamp(CHUNK, 1 << 20) };
    let target = (buffer.len() + step).min(most);
    buffer.reserve_exact(target - buffer.len());
    buffer.resize(target, 0);
}

#[cfg(test)]
mod tests;
