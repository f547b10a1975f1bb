//! What stands before every request and every response.

use crate::array_view::TextView;
use crate::decoder::{DecodeError, Decoder};
use crate::encoder::EncodeError;
use crate::message::{Request, Response};
use crate::messages::{RequestHeader, ResponseHeader};
use crate::{ApiKey, KafkaString, Message, RequestKind, ResponseKind, frame};
use bytes::BytesMut;
use std::fmt;

/// The header of a request, over its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeaderView<'a> {
    pub api: ApiKey,
    /// As sent: whether the API has this version is the caller's question, since ApiVersions answers it kindly.
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: Option<TextView<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Without the API nobody knows how long the header is.
    UnknownApi {
        code: i16,
        version: i16,
    },
    Malformed(DecodeError),
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderError::UnknownApi { code, version } => write!(f, "unknown API key {code} (version {version})"),
            HeaderError::Malformed(error) => write!(f, "malformed request header: {error}"),
        }
    }
}

impl std::error::Error for HeaderError {}

impl From<DecodeError> for HeaderError {
    fn from(error: DecodeError) -> HeaderError {
        HeaderError::Malformed(error)
    }
}

impl<'a> RequestHeaderView<'a> {
    /// Leaves the decoder at the request's body.
    pub fn decode(d: &mut Decoder<'a>) -> Result<RequestHeaderView<'a>, HeaderError> {
        let (code, version, correlation_id) = (d.i16()?, d.i16()?, d.i32()?);
        let api = ApiKey::from_code(code).ok_or(HeaderError::UnknownApi { code, version })?;
        // Flexible headers keep the old length of the client id.
        let client_id = d.unbounded_text(false)?;
        if api.request_header_version(version) >= 2 {
            d.skip_tags()?;
        }
        Ok(RequestHeaderView { api, version, correlation_id, client_id })
    }
}

/// Appends a whole request frame: size, header, body.
pub fn encode_request<R: Request>(
    out: &mut BytesMut,
    version: i16,
    correlation_id: i32,
    client_id: Option<&str>,
    body: &R,
) -> Result<(), EncodeError> {
    frame::sized(out, |out| {
        put_request_header(out, R::API, version, correlation_id, client_id)?;
        body.encode(out, version)
    })
}

/// Appends a whole response frame: size, header, body.
pub fn encode_response<R: Response>(
    out: &mut BytesMut,
    version: i16,
    correlation_id: i32,
    body: &R,
) -> Result<(), EncodeError> {
    frame::sized(out, |out| {
        put_response_header(out, R::API, version, correlation_id)?;
        body.encode(out, version)
    })
}

impl RequestKind {
    /// Appends a whole request frame, as `encode_request` does.
    pub fn encode_frame(
        &self,
        out: &mut BytesMut,
        version: i16,
        correlation_id: i32,
        client_id: Option<&str>,
    ) -> Result<(), EncodeError> {
        frame::sized(out, |out| {
            put_request_header(out, self.api(), version, correlation_id, client_id)?;
            self.encode(out, version)
        })
    }
}

impl ResponseKind {
    /// Appends a whole response frame, as `encode_response` does.
    pub fn encode_frame(&self, out: &mut BytesMut, version: i16, correlation_id: i32) -> Result<(), EncodeError> {
        frame::sized(out, |out| {
            put_response_header(out, self.api(), version, correlation_id)?;
            self.encode(out, version)
        })
    }
}

pub fn put_request_header(
    out: &mut BytesMut,
    api: ApiKey,
    version: i16,
    correlation_id: i32,
    client_id: Option<&str>,
) -> Result<(), EncodeError> {
    let header = RequestHeader {
        request_api_key: api.code(),
        request_api_version: version,
        correlation_id,
        client_id: client_id.map(KafkaString::from),
        ..RequestHeader::default()
    };
    header.encode(out, api.request_header_version(version))
}

pub fn put_response_header(
    out: &mut BytesMut,
    api: ApiKey,
    version: i16,
    correlation_id: i32,
) -> Result<(), EncodeError> {
    let header = ResponseHeader { correlation_id, ..ResponseHeader::default() };
    header.encode(out, api.response_header_version(version))
}

/// The correlation id of a response to a request of this API and version; leaves the decoder at its body.
pub fn read_response_header(d: &mut Decoder<'_>, api: ApiKey, version: i16) -> Result<i32, DecodeError> {
    let correlation_id = d.i32()?;
    if api.response_header_version(version) >= 1 {
        d.skip_tags()?;
    }
    Ok(correlation_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{ApiVersionsRequest, MetadataResponse};
    use bytes::BufMut;

    #[test]
    fn a_request_reads_as_it_was_written() {
        let mut out = BytesMut::new();
        encode_request(&mut out, 3, 77, Some("client"), &ApiVersionsRequest::default()).unwrap();
        let range = frame::split(&out, 1000).unwrap().unwrap();
        let mut d = Decoder::new(&out[range]);
        let header = RequestHeaderView::decode(&mut d).unwrap();
        let (api, client_id) = (ApiKey::ApiVersions, Some(TextView::Text("client")));
        assert_eq!(header, RequestHeaderView { api, version: 3, correlation_id: 77, client_id });
        assert_eq!(ApiVersionsRequest::decode(&mut d, 3), Ok(ApiVersionsRequest::default()));
        d.finish().unwrap();
    }

    #[test]
    fn a_response_reads_as_it_was_written() {
        for version in [1, 12] {
            let mut out = BytesMut::new();
            encode_response(&mut out, version, -5, &MetadataResponse::default()).unwrap();
            let range = frame::split(&out, 1000).unwrap().unwrap();
            let mut d = Decoder::new(&out[range]);
            assert_eq!(read_response_header(&mut d, ApiKey::Metadata, version), Ok(-5));
            assert_eq!(MetadataResponse::decode(&mut d, version), Ok(MetadataResponse::default()));
            d.finish().unwrap();
        }
    }

    #[test]
    fn kinds_write_the_same_frames() {
        let (mut typed, mut untyped) = (BytesMut::new(), BytesMut::new());
        encode_request(&mut typed, 4, 1, None, &ApiVersionsRequest::default()).unwrap();
        RequestKind::from(ApiVersionsRequest::default()).encode_frame(&mut untyped, 4, 1, None).unwrap();
        encode_response(&mut typed, 9, 1, &MetadataResponse::default()).unwrap();
        ResponseKind::from(MetadataResponse::default()).encode_frame(&mut untyped, 9, 1).unwrap();
        assert_eq!(typed, untyped);
    }

    #[test]
    fn unknown_apis_are_told_from_broken_headers() {
        let mut out = BytesMut::new();
        out.put_slice(&[0, 99, 0, 1, 0, 0, 0, 9]);
        let unknown = Err(HeaderError::UnknownApi { code: 99, version: 1 });
        assert_eq!(RequestHeaderView::decode(&mut Decoder::new(&out)), unknown);
        let short = HeaderError::Malformed(DecodeError::Truncated { needed: 4, remaining: 2 });
        assert_eq!(RequestHeaderView::decode(&mut Decoder::new(&out[..6])), Err(short));
    }
}
