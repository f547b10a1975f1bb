//! Which APIs this node serves, in which versions, and who answers each. ApiVersions and the README's table are made from
//! it, and a request for anything else ends its connection as Kafka's does.

use wire::{ApiKey, VersionRange};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Answered on the connection's core from the view; some requests of these go on to the control plane.
    View,
    /// Answered by the cores that own the partitions.
    Partitions,
    /// Answered by the control plane.
    ControlPlane,
}

const TABLE: &[(ApiKey, Route)] = &[
    (ApiKey::Produce, Route::Partitions),
    (ApiKey::Fetch, Route::Partitions),
    (ApiKey::ListOffsets, Route::Partitions),
    (ApiKey::Metadata, Route::View),
    (ApiKey::OffsetCommit, Route::ControlPlane),
    (ApiKey::OffsetFetch, Route::ControlPlane),
    (ApiKey::FindCoordinator, Route::View),
    (ApiKey::JoinGroup, Route::ControlPlane),
    (ApiKey::Heartbeat, Route::ControlPlane),
    (ApiKey::LeaveGroup, Route::ControlPlane),
    (ApiKey::SyncGroup, Route::ControlPlane),
    (ApiKey::DescribeGroups, Route::ControlPlane),
    (ApiKey::ListGroups, Route::ControlPlane),
    (ApiKey::ApiVersions, Route::View),
    (ApiKey::CreateTopics, Route::ControlPlane),
    (ApiKey::DeleteTopics, Route::ControlPlane),
    (ApiKey::DeleteRecords, Route::Partitions),
    (ApiKey::InitProducerId, Route::View),
    (ApiKey::OffsetForLeaderEpoch, Route::Partitions),
    (ApiKey::DescribeConfigs, Route::ControlPlane),
    (ApiKey::AlterConfigs, Route::ControlPlane),
    (ApiKey::DescribeLogDirs, Route::Partitions),
    (ApiKey::CreatePartitions, Route::ControlPlane),
    (ApiKey::DeleteGroups, Route::ControlPlane),
    (ApiKey::ElectLeaders, Route::ControlPlane),
    (ApiKey::IncrementalAlterConfigs, Route::ControlPlane),
    (ApiKey::AlterPartitionReassignments, Route::ControlPlane),
    (ApiKey::ListPartitionReassignments, Route::ControlPlane),
    (ApiKey::OffsetDelete, Route::ControlPlane),
    (ApiKey::DescribeQuorum, Route::ControlPlane),
    (ApiKey::UpdateFeatures, Route::ControlPlane),
    (ApiKey::DescribeCluster, Route::View),
    (ApiKey::DescribeProducers, Route::Partitions),
    (ApiKey::UnregisterBroker, Route::ControlPlane),
    (ApiKey::ListConfigResources, Route::ControlPlane),
    (ApiKey::DescribeTopicPartitions, Route::View),
];

/// APIs served, in the order of their numbers.
pub fn served() -> impl Iterator<Item = ApiKey> {
    TABLE.iter().map(|(api, _)| *api)
}

pub fn route(api: ApiKey) -> Option<Route> {
    TABLE.iter().find(|(served, _)| *served == api).map(|(_, route)| *route)
}

/// Versions that are named to clients.
pub fn advertised(api: ApiKey) -> VersionRange {
    api.advertised_versions()
}

/// Whether a request of this API and version is served.
pub fn supports(api: ApiKey, version: i16) -> bool {
    route(api).is_some() && api.stable_versions().contains(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_names_broker_apis_only() {
        let served: Vec<i16> = served().map(ApiKey::code).collect();
        assert!(served.is_sorted());
        assert!(TABLE.iter().all(|(api, _)| api.info().on_broker));
    }

    #[test]
    fn old_produce_is_advertised_but_not_served() {
        assert_eq!(advertised(ApiKey::Produce).min, 0);
        assert!(!supports(ApiKey::Produce, 2));
        assert!(supports(ApiKey::Produce, 3));
        assert!(!supports(ApiKey::ConsumerGroupHeartbeat, 0));
    }
}
