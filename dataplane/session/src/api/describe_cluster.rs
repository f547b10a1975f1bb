//! DescribeCluster (KIP-700, KIP-919, KIP-1073).

use super::{Asker, operations};
use wire::messages::describe_cluster_response::DescribeClusterBroker;
use wire::messages::{DescribeClusterRequest, DescribeClusterResponse};
use wire::{ErrorCode, KafkaString};

/// The endpoint type that a broker's listener answers for; 2 is a controller's.
const BROKERS: i8 = 1;

pub fn answer(asker: Asker<'_>, request: &DescribeClusterRequest, version: i16) -> DescribeClusterResponse {
    if version >= 1 && request.endpoint_type != BROKERS {
        let known = request.endpoint_type == 2;
        let error = if known { ErrorCode::MismatchedEndpointType } else { ErrorCode::UnsupportedEndpointType };
        let message = if known {
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        } else {
            "Unsupported endpoint type"
        };
        return DescribeClusterResponse {
            error_code: error.code(),
            error_message: Some(KafkaString::from_static(message)),
            ..Default::default()
        };
    }
    let fenced_too = version >= 2 && request.include_fenced_brokers;
    let brokers = asker.view.brokers().filter(|broker| fenced_too || !broker.fenced).filter_map(|broker| {
        asker.endpoint_of(broker).map(|endpoint| DescribeClusterBroker {
            broker_id: endpoint.node.0,
            host: endpoint.host,
            port: endpoint.port,
            rack: endpoint.rack,
            is_fenced: broker.fenced,
            ..Default::default()
        })
    });
    DescribeClusterResponse {
        endpoint_type: BROKERS,
        cluster_id: KafkaString::from(asker.cluster_id),
        controller_id: asker.view.controller().map_or(-1, |node| node.0),
        brokers: brokers.collect(),
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            operations::CLUSTER
        } else {
            operations::NOT_ASKED
        },
        ..Default::default()
    }
}
