//! The table of APIs. The generator lists them; this macro makes the enum, its facts, and the enums of all requests and
//! all responses.

use crate::message::VersionRange;
pub use crate::messages::ApiKey;
use std::fmt;

/// What is fixed about one API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiInfo {
    /// Kafka's name, such as `OffsetForLeaderEpoch`.
    pub name: &'static str,
    /// Every version that can be decoded.
    pub versions: VersionRange,
    /// The newest version exists but is not advertised unless unstable versions are enabled.
    pub latest_unstable: bool,
    pub request_flexible_since: Option<i16>,
    pub response_flexible_since: Option<i16>,
    pub on_broker: bool,
    pub on_controller: bool,
}

/// No API has this number, or every version of it was removed (4 to 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownApi(pub i16);

impl fmt::Display for UnknownApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown API key {}", self.0)
    }
}

impl std::error::Error for UnknownApi {}

impl ApiKey {
    pub const fn code(self) -> i16 {
        self as i16
    }

    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Every version that can be decoded.
    pub fn versions(self) -> VersionRange {
        self.info().versions
    }

    pub fn supports(self, version: i16) -> bool {
        self.versions().contains(version)
    }

    /// The versions that Kafka 4.4 does not call unstable.
    pub fn stable_versions(self) -> VersionRange {
        let VersionRange { min, max } = self.versions();
        VersionRange { min, max: max - i16::from(self.info().latest_unstable) }
    }

    /// The stable versions as ApiVersions names them: Produce is advertised from 0 on, because old librdkafka gives up
    /// otherwise (KAFKA-18659), though versions 0 to 2 are refused.
    pub fn advertised_versions(self) -> VersionRange {
        let stable = self.stable_versions();
        if self == ApiKey::Produce { VersionRange { min: 0, ..stable } } else { stable }
    }

    /// Also right for versions that do not exist, so that their requests can be answered.
    pub fn request_is_flexible(self, version: i16) -> bool {
        self.info().request_flexible_since.is_some_and(|since| version >= since)
    }

    pub fn response_is_flexible(self, version: i16) -> bool {
        self.info().response_flexible_since.is_some_and(|since| version >= since)
    }

    /// 1, or 2 with tagged fields.
    pub fn request_header_version(self, version: i16) -> i16 {
        1 + i16::from(self.request_is_flexible(version))
    }

    /// 0, or 1 with tagged fields. ApiVersions stays at 0: its client may not know yet what the broker can read.
    pub fn response_header_version(self, version: i16) -> i16 {
        i16::from(self != ApiKey::ApiVersions && self.response_is_flexible(version))
    }
}

impl TryFrom<i16> for ApiKey {
    type Error = UnknownApi;
    fn try_from(code: i16) -> Result<ApiKey, UnknownApi> {
        ApiKey::from_code(code).ok_or(UnknownApi(code))
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! apis {
    ($($name:ident = $id:literal, $request:ident, $response:ident, $unstable:literal, $broker:literal,
       $controller:literal;)*) => {
        /// The APIs of Kafka 4.4.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $($name = $id),*
        }

        impl ApiKey {
            pub const ALL: &'static [ApiKey] = &[$(ApiKey::$name),*];

            pub const fn from_code(code: i16) -> Option<ApiKey> {
                match code {
                    $($id => Some(ApiKey::$name),)*
                    _ => None,
                }
            }

            pub const fn info(self) -> &'static crate::ApiInfo {
                use crate::Message;
                match self {
                    $(ApiKey::$name => const { &crate::ApiInfo {
                        name: stringify!($name),
                        versions: $request::VERSIONS,
                        latest_unstable: $unstable,
                        request_flexible_since: $request::FLEXIBLE_SINCE,
                        response_flexible_since: $response::FLEXIBLE_SINCE,
                        on_broker: $broker,
                        on_controller: $controller,
                    } },)*
                }
            }
        }

        $(
            impl crate::Request for $request {
                const API: ApiKey = ApiKey::$name;
                type Response = $response;
            }

            impl crate::Response for $response {
                const API: ApiKey = ApiKey::$name;
            }
        )*

        crate::api::kinds! { RequestKind, "The request of any API.", $($name $request;)* }
        crate::api::kinds! { ResponseKind, "The response of any API.", $($name $response;)* }
    };
}
pub(crate) use apis;

macro_rules! kinds {
    ($kind:ident, $doc:literal, $($name:ident $message:ident;)*) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq)]
        pub enum $kind {
            $($name($message)),*
        }

        impl $kind {
            pub fn api(&self) -> ApiKey {
                match self {
                    $($kind::$name(_) => ApiKey::$name),*
                }
            }

            pub fn decode(
                api: ApiKey,
                version: i16,
                d: &mut crate::Decoder<'_>,
            ) -> Result<$kind, crate::DecodeError> {
                use crate::Message;
                match api {
                    $(ApiKey::$name => $message::decode(d, version).map($kind::$name)),*
                }
            }

            pub fn encode(&self, out: &mut bytes::BytesMut, version: i16) -> Result<(), crate::EncodeError> {
                use crate::Message;
                match self {
                    $($kind::$name(message) => message.encode(out, version)),*
                }
            }
        }

        $(impl From<$message> for $kind {
            fn from(message: $message) -> $kind {
                $kind::$name(message)
            }
        })*
    };
}
pub(crate) use kinds;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_api_of_kafka_4_4_is_there() {
        assert_eq!(ApiKey::ALL.len(), 91);
        for (index, api) in ApiKey::ALL.iter().enumerate() {
            let gap = if index < 4 { 0 } else { 4 };
            assert_eq!(api.code(), index as i16 + gap);
            assert_eq!(ApiKey::try_from(api.code()), Ok(*api));
        }
        assert_eq!(ApiKey::try_from(5), Err(UnknownApi(5)));
        assert_eq!(ApiKey::try_from(95), Err(UnknownApi(95)));
    }

    #[test]
    fn header_versions_follow_the_rule() {
        assert_eq!(ApiKey::ApiVersions.request_header_version(127), 2);
        assert_eq!(ApiKey::ApiVersions.response_header_version(4), 0);
        assert_eq!(ApiKey::Produce.request_header_version(8), 1);
        assert_eq!((ApiKey::Produce.request_header_version(9), ApiKey::Produce.response_header_version(9)), (2, 1));
        assert_eq!(ApiKey::SaslHandshake.request_header_version(1), 1);
    }

    #[test]
    fn unstable_and_refused_versions_are_told_apart() {
        assert_eq!(ApiKey::InitProducerId.stable_versions(), VersionRange::new(0, 5));
        assert_eq!(ApiKey::InitProducerId.versions(), VersionRange::new(0, 6));
        assert_eq!(ApiKey::Produce.advertised_versions(), VersionRange::new(0, 13));
        assert!(!ApiKey::Produce.supports(2));
    }
}
