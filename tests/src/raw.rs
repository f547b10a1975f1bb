//! Raw exchanges whose answers come as plain values, named by the schema: what the differential driver and the traps
//! compare. The decoding goes by the schema files, not by the generated structs, so that a field that both ends of our
//! own code forget would still show.

use crate::Result;
use batch::{BatchView, HEADER_SIZE, Records, inflate};
use bytes::{Bytes, BytesMut};
use perf::client::{CallError, Connection};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;
use wire::{ApiKey, DecodeError, Decoder, RequestKind, TextView};
use wire_codegen::{Field, FieldType, Message, Primitive, Schema};

/// The schema files of `dataplane/wire`.
pub fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let folder = crate::jvm::folder().join("../dataplane/wire/schema");
        Schema::load(&folder).expect("the schema files are good: the build has read them")
    })
}

/// How long a raw exchange may take. A broker that says nothing for this long is taken to be silent.
const SILENCE: Duration = Duration::from_secs(15);

/// A connection that is opened again after the broker closed it.
pub struct Raw {
    address: SocketAddr,
    connection: Option<Connection>,
}

impl Raw {
    pub fn new(address: SocketAddr) -> Raw {
        Raw { address, connection: None }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connection(&mut self) -> Result<&mut Connection> {
        if self.connection.is_none() {
            self.connection = Some(Connection::open(self.address, SILENCE)?);
        }
        self.connection.as_mut().ok_or_else(|| "the connection was just opened".into())
    }

    /// Goes on with a new connection.
    pub fn reconnect(&mut self) {
        self.connection = None;
    }

    /// Sends a request; `{"answer": ..}`, or `"closed"`, or `"silent"`, or `{"undecodable": ..}`.
    pub fn ask(&mut self, version: i16, request: &RequestKind) -> Result<Value> {
        let mut body = BytesMut::new();
        request.encode(&mut body, version).map_err(|error| format!("{} v{version}: {error}", request.api()))?;
        self.exchange(request.api(), version, &body)
    }

    pub fn exchange(&mut self, api: ApiKey, version: i16, body: &[u8]) -> Result<Value> {
        let connection = self.connection()?;
        let answer = connection
            .send_body(api, version, body)
            .and_then(|correlation| connection.receive_body(api, version, correlation));
        match answer {
            Ok(body) => Ok(describe_response(api, version, &body)),
            Err(error) => {
                self.connection = None;
                match error {
                    CallError::Closed => Ok(json!("closed")),
                    CallError::TimedOut => Ok(json!("silent")),
                    CallError::Malformed(reason) => Ok(json!({ "undecodable": reason })),
                    CallError::Io(error) => Err(error.into()),
                }
            }
        }
    }
}

/// A response's body as a value.
pub fn describe_response(api: ApiKey, version: i16, body: &Bytes) -> Value {
    let name = format!("{}Response", api.name());
    let Some(message) = schema().find(&name) else { return json!({ "undecodable": format!("no schema of {name}") }) };
    let mut d = Decoder::shared(body);
    let decoded = Reader { message, version }.message(&mut d).and_then(|value| d.finish().map(|()| value));
    match decoded {
        Ok(value) => json!({ "answer": value }),
        Err(error) => json!({ "undecodable": error.to_string() }),
    }
}

struct Reader<'a> {
    message: &'a Message,
    version: i16,
}

type Decoded<T> = std::result::Result<T, DecodeError>;

impl Reader<'_> {
    fn flexible(&self) -> bool {
        self.message.flexible.contains(self.version)
    }

    fn message(&self, d: &mut Decoder<'_>) -> Decoded<Value> {
        self.fields(&self.message.fields, d)
    }

    fn fields(&self, fields: &[Field], d: &mut Decoder<'_>) -> Decoded<Value> {
        let mut map = Map::new();
        let here: Vec<&Field> = fields.iter().filter(|field| field.versions.contains(self.version)).collect();
        for field in here.iter().filter(|field| field.tag.is_none()) {
            map.insert(field.name.clone(), self.field(field, d)?);
        }
        if self.flexible() {
            for _ in 0..d.uvarint()? {
                let (tag, size) = (d.uvarint()?, d.uvarint()? as usize);
                let bytes = d.take(size)?;
                let mut inner = Decoder::new(bytes);
                let (name, value) = match here.iter().find(|field| field.tag == Some(tag)) {
                    Some(field) => (field.name.clone(), self.field(field, &mut inner)?),
                    None => (format!("tag {tag}"), json!(hex(inner.take(size)?))),
                };
                inner.finish()?;
                map.insert(name, value);
            }
        }
        Ok(Value::Object(map))
    }

    fn field(&self, field: &Field, d: &mut Decoder<'_>) -> Decoded<Value> {
        let flexible = self.flexible() && field.flexible.is_none_or(|versions| versions.contains(self.version));
        let nullable = field.nullable.contains(self.version);
        let value = self.value(&field.kind, flexible, nullable, d)?;
        if value.is_null() && !nullable { Err(DecodeError::NullNotAllowed) } else { Ok(value) }
    }

    fn value(&self, kind: &FieldType, flexible: bool, nullable: bool, d: &mut Decoder<'_>) -> Decoded<Value> {
        match kind {
            FieldType::Primitive(primitive) => primitive_value(*primitive, flexible, d),
            FieldType::Struct(_) if nullable && d.i8()? < 0 => Ok(Value::Null),
            FieldType::Struct(name) => {
                let declared = self.message.find_struct(name);
                self.fields(declared.map_or(&[], |declared| declared.fields.as_slice()), d)
            }
            FieldType::Array(element) => {
                let Some(count) = d.nullable_count(flexible)? else { return Ok(Value::Null) };
                let elements: Decoded<Vec<Value>> =
                    (0..count).map(|_| self.value(element, flexible, false, d)).collect();
                Ok(Value::Array(elements?))
            }
        }
    }
}

fn primitive_value(primitive: Primitive, flexible: bool, d: &mut Decoder<'_>) -> Decoded<Value> {
    Ok(match primitive {
        Primitive::Bool => json!(d.boolean()?),
        Primitive::Int8 => json!(d.i8()?),
        Primitive::Int16 => json!(d.i16()?),
        Primitive::Int32 => json!(d.i32()?),
        Primitive::Int64 => json!(d.i64()?),
        Primitive::Uint16 => json!(d.u16()?),
        Primitive::Uint32 => json!(d.u32()?),
        Primitive::Float64 => json!(d.f64()?),
        Primitive::String => json!(d.nullable_text(flexible)?.map(TextView::lossy)),
        Primitive::Bytes => json!(d.nullable_slice(flexible)?.map(hex)),
        Primitive::Records => d.nullable_slice(flexible)?.map_or(Value::Null, describe_records),
        Primitive::Uuid => json!(d.uuid()?.to_string()),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Record batches as values: what a reader is told of them. A last batch that is cut is named as such.
pub fn describe_records(bytes: &[u8]) -> Value {
    let mut batches = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let size = rest.get(8..12).and_then(|b| b.try_into().ok()).map_or(0, |b| i32::from_be_bytes(b) as usize + 12);
        if size < HEADER_SIZE || size > rest.len() {
            batches.push(json!({ "cut": true }));
            break;
        }
        let (batch, after) = rest.split_at(size);
        batches.push(describe_batch(batch));
        rest = after;
    }
    json!(batches)
}

fn describe_batch(bytes: &[u8]) -> Value {
    let view = match BatchView::parse_whole(bytes) {
        Ok(view) => view,
        Err(error) => return json!({ "bad batch": error.to_string() }),
    };
    let header = view.header();
    let records = view.codec().ok().and_then(|codec| inflate(codec, view.body(), 64 << 20).ok()).map(|body| {
        let read: std::result::Result<Vec<Value>, _> = Records::new(&body, view.records_count())
            .map(|record| {
                record.map(|record| {
                    json!({
                        "offset": header.offset_at(record.offset_delta).0,
                        "timestamp": header.timestamp_at(record.timestamp_delta).0,
                        "key": record.key.map(hex),
                        "value": record.value.map(hex),
                        "headers": record.headers_count(),
                    })
                })
            })
            .collect();
        read.map_or_else(|error| json!(error.to_string()), Value::Array)
    });
    json!({
        "base_offset": header.base_offset.0,
        "leader_epoch": header.partition_leader_epoch.0,
        "attributes": header.attributes.0,
        "last_offset_delta": header.last_offset_delta,
        "base_timestamp": header.base_timestamp.0,
        "max_timestamp": header.max_timestamp.0,
        "ProducerId": header.producer_id.0,
        "producer_epoch": header.producer_epoch.0,
        "base_sequence": header.base_sequence.0,
        "records": records,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::WallMillis;
    use batch::BatchBuilder;
    use wire::messages::fetch_response::{FetchableTopicResponse, PartitionData};
    use wire::messages::{FetchResponse, MetadataResponse};
    use wire::{KafkaString, Message as _};

    #[test]
    fn an_answer_is_described_by_its_schema() {
        let mut builder = BatchBuilder::new();
        builder.append(WallMillis(5), None, Some(b"\x01\x02"), &[]);
        let partition = PartitionData { records: Some(builder.build().into()), ..Default::default() };
        let topic =
            FetchableTopicResponse { topic: KafkaString::from("t"), partitions: vec![partition], ..Default::default() };
        let response = FetchResponse { responses: vec![topic], session_id: 9, ..Default::default() };
        for version in [7, 12] {
            let body = response.to_bytes(version).expect("it encodes");
            let value = &describe_response(ApiKey::Fetch, version, &body)["answer"];
            assert_eq!(value["SessionId"], 9, "{value}");
            let partition = &value["Responses"][0]["Partitions"][0];
            assert_eq!(partition["Records"][0]["records"][0]["value"], "0102");
            assert_eq!(partition["AbortedTransactions"], json!([]), "{value}");
        }
    }

    #[test]
    fn what_does_not_decode_says_so() {
        let body = MetadataResponse::default().to_bytes(12).expect("it encodes");
        assert!(describe_response(ApiKey::Metadata, 12, &body.slice(..body.len() - 1)).get("undecodable").is_some());
        assert_eq!(describe_records(&[0; 20]), json!([{ "cut": true }]));
    }
}
