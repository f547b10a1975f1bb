//! The two responses of the hot path, written topic by topic and partition by partition, so that no struct of the whole
//! response is built. A fetch response leaves holes where records go: their bytes lie elsewhere and are sent from there.

use crate::encoder::{EncodeError, put_length, put_string};
use crate::frame;
use crate::header::put_response_header;
use crate::message::{Response, Ver, Wire};
use crate::messages::fetch_response::{self, FetchResponse, PartitionData};
use crate::messages::produce_response::{self, PartitionProduceResponse, ProduceResponse};
use crate::tags::{TagWriter, UnknownTags};
use base::Uuid;
use bytes::{BufMut, BytesMut};

/// From this version on both responses name topics by id.
const TOPIC_IDS_SINCE: i16 = 13;

/// A frame under way: counts were promised in front of what they count.
struct Pieces<'a> {
    out: &'a mut BytesMut,
    v: Ver,
    start: usize,
    topics_left: usize,
    partitions_left: usize,
    /// Bytes of the frame that are not in `out`.
    elsewhere: usize,
}

impl<'a> Pieces<'a> {
    fn begin<R: Response>(
        out: &'a mut BytesMut,
        version: i16,
        correlation_id: i32,
        topics: usize,
    ) -> Result<Pieces<'a>, EncodeError> {
        let v = R::ver(version).ok_or(EncodeError::UnsupportedVersion { message: R::NAME, version })?;
        let start = out.len();
        out.put_i32(0);
        put_response_header(out, R::API, version, correlation_id)?;
        Ok(Pieces { out, v, start, topics_left: topics, partitions_left: 0, elsewhere: 0 })
    }

    fn topic(&mut self, name: &str, id: Uuid, partitions: usize) -> Result<(), EncodeError> {
        assert_eq!(self.partitions_left, 0, "the topic before has all its partitions");
        self.topics_left = self.topics_left.checked_sub(1).expect("no more topics than promised");
        match self.v.version >= TOPIC_IDS_SINCE {
            true => id.write(self.out, self.v)?,
            false => put_string(self.out, Some(name), self.v.flexible)?,
        }
        put_length(self.out, Some(partitions), self.v.flexible)?;
        self.partitions_left = partitions;
        if partitions == 0 {
            self.end_topic();
        }
        Ok(())
    }

    fn partition(&mut self) {
        self.partitions_left = self.partitions_left.checked_sub(1).expect("no more partitions than promised");
    }

    /// Its tagged fields follow the last partition of a topic; there are none.
    fn end_topic(&mut self) {
        if self.partitions_left == 0 && self.v.flexible {
            self.out.put_u8(0);
        }
    }

    /// The tagged fields of the response and the size in front of it.
    fn finish<E: Wire>(self, endpoints: &Vec<E>, since: i16, field: &'static str) -> Result<(), EncodeError> {
        assert_eq!((self.topics_left, self.partitions_left), (0, 0), "everything promised was written");
        if self.v.version < since && !endpoints.is_empty() {
            return Err(self.v.lacks(field));
        }
        if self.v.flexible {
            let mut tags = TagWriter::new(self.out, &UnknownTags::NONE);
            if !endpoints.is_empty() {
                let at = tags.open(0)?;
                endpoints.write(tags.out(), self.v)?;
                tags.close(at);
            }
            tags.finish()?;
        }
        let size = self.out.len() - self.start - frame::SIZE_BYTES + self.elsewhere;
        let size = i32::try_from(size).map_err(|_| EncodeError::TooLong(size))?;
        self.out[self.start..self.start + frame::SIZE_BYTES].copy_from_slice(&size.to_be_bytes());
        Ok(())
    }
}

/// Writes a fetch response frame. After an error, and when dropped before `finish`, `out` holds part of it.
pub struct FetchResponseWriter<'a>(Pieces<'a>);

impl<'a> FetchResponseWriter<'a> {
    pub fn begin(
        out: &'a mut BytesMut,
        version: i16,
        correlation_id: i32,
        head: FetchResponseHead,
        topics: usize,
    ) -> Result<FetchResponseWriter<'a>, EncodeError> {
        let pieces = Pieces::begin::<FetchResponse>(out, version, correlation_id, topics)?;
        pieces.out.put_i32(head.throttle_time_ms);
        if version >= 7 {
            pieces.out.put_i16(head.error_code);
            pieces.out.put_i32(head.session_id);
        } else if head.session_id != 0 {
            return Err(pieces.v.lacks("FetchResponse.SessionId"));
        }
        put_length(pieces.out, Some(topics), pieces.v.flexible)?;
        Ok(FetchResponseWriter(pieces))
    }

    /// Starts a topic; which of name and id is written depends on the version.
    pub fn topic(&mut self, name: &str, id: Uuid, partitions: usize) -> Result<(), EncodeError> {
        self.0.topic(name, id, partitions)
    }

    /// Writes a partition with `records` bytes of records, which are not in `out` but belong at the position returned.
    /// `data.records` is ignored; without records the record set is empty, never null, as clients need it.
    pub fn partition(&mut self, data: &PartitionData, records: usize) -> Result<usize, EncodeError> {
        let pieces = &mut self.0;
        pieces.partition();
        let (v, out) = (pieces.v, &mut *pieces.out);
        out.put_i32(data.partition_index);
        out.put_i16(data.error_code);
        out.put_i64(data.high_watermark);
        out.put_i64(data.last_stable_offset);
        if v.version >= 5 {
            out.put_i64(data.log_start_offset);
        }
        data.aborted_transactions.write(out, v)?;
        if v.version >= 11 {
            out.put_i32(data.preferred_read_replica);
        } else if data.preferred_read_replica != -1 {
            return Err(v.lacks("FetchResponse.PartitionData.PreferredReadReplica"));
        }
        put_length(out, Some(records), v.flexible)?;
        let hole = out.len();
        pieces.elsewhere += records;
        let tagged = [
            (0, data.diverging_epoch != fetch_response::EpochEndOffset::default()),
            (1, data.current_leader != fetch_response::LeaderIdAndEpoch::default()),
            (2, data.snapshot_id != fetch_response::SnapshotId::default()),
        ];
        if v.flexible {
            let mut tags = TagWriter::new(out, &data.unknown_tags);
            for (tag, _) in tagged.iter().filter(|(_, set)| *set) {
                let at = tags.open(*tag)?;
                match tag {
                    0 => data.diverging_epoch.write(tags.out(), v)?,
                    1 => data.current_leader.write(tags.out(), v)?,
                    _ => data.snapshot_id.write(tags.out(), v)?,
                }
                tags.close(at);
            }
            tags.finish()?;
        } else if tagged.iter().any(|(_, set)| *set) {
            return Err(v.lacks("FetchResponse.PartitionData"));
        }
        pieces.end_topic();
        Ok(hole)
    }

    /// Completes the frame; its size counts the records too.
    pub fn finish(self, endpoints: &Vec<fetch_response::NodeEndpoint>) -> Result<(), EncodeError> {
        self.0.finish(endpoints, 16, "FetchResponse.NodeEndpoints")
    }
}

/// What a fetch response says before its topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchResponseHead {
    pub throttle_time_ms: i32,
    pub error_code: i16,
    pub session_id: i32,
}

/// Writes a produce response frame. After an error, and when dropped before `finish`, `out` holds part of it.
pub struct ProduceResponseWriter<'a>(Pieces<'a>);

impl<'a> ProduceResponseWriter<'a> {
    pub fn begin(
        out: &'a mut BytesMut,
        version: i16,
        correlation_id: i32,
        topics: usize,
    ) -> Result<ProduceResponseWriter<'a>, EncodeError> {
        let pieces = Pieces::begin::<ProduceResponse>(out, version, correlation_id, topics)?;
        put_length(pieces.out, Some(topics), pieces.v.flexible)?;
        Ok(ProduceResponseWriter(pieces))
    }

    pub fn topic(&mut self, name: &str, id: Uuid, partitions: usize) -> Result<(), EncodeError> {
        self.0.topic(name, id, partitions)
    }

    pub fn partition(&mut self, data: &PartitionProduceResponse) -> Result<(), EncodeError> {
        self.0.partition();
        data.write(self.0.out, self.0.v)?;
        self.0.end_topic();
        Ok(())
    }

    pub fn finish(
        self,
        throttle_time_ms: i32,
        endpoints: &Vec<produce_response::NodeEndpoint>,
    ) -> Result<(), EncodeError> {
        self.0.out.put_i32(throttle_time_ms);
        self.0.finish(endpoints, 10, "ProduceResponse.NodeEndpoints")
    }
}
