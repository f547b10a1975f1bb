//! ApiVersions (KIP-35, KIP-511, KIP-584): what this node serves, and the cluster's features.

use super::Asker;
use crate::route;
use wire::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use wire::messages::{ApiVersionsRequest, ApiVersionsResponse};
use wire::{ApiKey, ErrorCode, KafkaString};

/// Feature levels this build serves; those of the protocols that do not exist here yet stay at 0.
pub const SUPPORTED_FEATURES: &[(&str, i16, i16)] = &[
    ("group.version", 0, 0),
    ("transaction.version", 0, 0),
    ("eligible.leader.replicas.version", 0, 1),
    ("metadata.version", 7, 33),
    ("share.version", 0, 0),
    ("streams.version", 0, 0),
    ("kraft.version", 0, 1),
];

/// The first version whose client understands a feature that may be unset (minimum level 0).
const ZERO_LEVELS_SINCE: i16 = 4;

/// The answer to a version we do not have: encoded as version 0, it names the range of ApiVersions itself.
pub fn unsupported_version() -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: ErrorCode::UnsupportedVersion.code(),
        api_keys: vec![entry(ApiKey::ApiVersions)],
        ..ApiVersionsResponse::default()
    }
}

pub fn answer(asker: Asker<'_>, request: &ApiVersionsRequest, version: i16) -> ApiVersionsResponse {
    let named = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.'))
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if version >= 3 && !(named(&request.client_software_name) && named(&request.client_software_version)) {
        return ApiVersionsResponse { error_code: ErrorCode::InvalidRequest.code(), ..Default::default() };
    }
    let supported_features = SUPPORTED_FEATURES
        .iter()
        .filter(|(_, min, _)| *min > 0 || version >= ZERO_LEVELS_SINCE)
        .map(|(name, min, max)| SupportedFeatureKey {
            name: KafkaString::from_static(name),
            min_version: *min,
            max_version: *max,
            ..Default::default()
        })
        .collect();
    let (epoch, levels) = asker.view.features();
    let finalized_features = levels
        .iter()
        .filter(|(_, level)| *level > 0)
        .map(|(name, level)| FinalizedFeatureKey {
            name: KafkaString::from(name.as_str()),
            max_version_level: *level,
            min_version_level: *level,
            ..Default::default()
        })
        .collect();
    ApiVersionsResponse {
        api_keys: route::served().map(entry).collect(),
        supported_features,
        finalized_features_epoch: epoch,
        finalized_features,
        ..Default::default()
    }
}

fn entry(api: ApiKey) -> ApiVersion {
    let versions = route::advertised(api);
    ApiVersion { api_key: api.code(), min_version: versions.min, max_version: versions.max, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::test_view;
    use base::NodeId;

    #[test]
    fn the_client_must_name_its_software() {
        let view = test_view::view(vec![]);
        let asker = Asker { view: &view, node: NodeId(1), cluster_id: "c", listener_name: "PLAINTEXT" };
        let mut request = ApiVersionsRequest {
            client_software_name: KafkaString::from_static("a-b.c"),
            client_software_version: KafkaString::from_static("1.0"),
            ..Default::default()
        };
        assert_eq!(answer(asker, &request, 3).error_code, 0);
        for bad in ["", "-a", "a b", "a-"] {
            request.client_software_name = KafkaString::from(bad);
            assert_eq!(answer(asker, &request, 3).error_code, ErrorCode::InvalidRequest.code(), "{bad}");
            assert_eq!(answer(asker, &request, 2).error_code, 0, "older requests carry no name");
        }
    }

    #[test]
    fn features_with_level_zero_wait_for_version_four() {
        let view = test_view::view(vec![]);
        let asker = Asker { view: &view, node: NodeId(1), cluster_id: "c", listener_name: "PLAINTEXT" };
        let request = ApiVersionsRequest {
            client_software_name: KafkaString::from_static("a"),
            client_software_version: KafkaString::from_static("1"),
            ..Default::default()
        };
        assert_eq!(answer(asker, &request, 3).supported_features.len(), 1);
        assert_eq!(answer(asker, &request, 4).supported_features.len(), SUPPORTED_FEATURES.len());
    }
}
