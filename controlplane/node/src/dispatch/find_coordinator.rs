//! FindCoordinator (KIP-699) where the dataplane could not say: the topic of groups is not there yet and is made now, or
//! a kind of coordinator is asked for that does not exist here.

use crate::held::Caller;
use crate::node::Node;
use crate::topics::GROUP_TOPIC;
use base::Now;
use coordinators::partition_for;
use wire::messages::find_coordinator_response::Coordinator;
use wire::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use wire::{ErrorCode, KafkaString};

/// Keys in a list from here on.
const LISTS_SINCE: i16 = 4;
/// Before it every key is a group's.
const KINDS_SINCE: i16 = 1;
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;

struct Found {
    node: i32,
    host: KafkaString,
    port: i32,
}

impl Node {
    pub(super) fn find_coordinator(
        &mut self,
        caller: Caller,
        request: &FindCoordinatorRequest,
        listener: &str,
        now: Now,
    ) {
        let kind = if caller.version >= KINDS_SINCE { request.key_type } else { GROUP };
        if kind == GROUP && self.loader.image().topics.named(GROUP_TOPIC).is_none() {
            self.create_group_topic(now);
        }
        let find = |key: &KafkaString| match kind {
            GROUP => self.find_group(key, listener).ok_or(ErrorCode::CoordinatorNotAvailable),
            TRANSACTION | SHARE => Err(ErrorCode::UnsupportedVersion),
            _ => Err(ErrorCode::InvalidRequest),
        };
        let response = if caller.version >= LISTS_SINCE {
            let coordinators = request.coordinator_keys.iter().map(|key| told(key, find(key))).collect();
            FindCoordinatorResponse { coordinators, ..Default::default() }
        } else {
            let told = told(&request.key, find(&request.key));
            FindCoordinatorResponse {
                error_code: told.error_code,
                error_message: told.error_message.filter(|_| caller.version >= KINDS_SINCE),
                node_id: told.node_id,
                host: told.host,
                port: told.port,
                ..Default::default()
            }
        };
        self.answer(caller, &response.into());
    }

    fn find_group(&self, group: &str, listener: &str) -> Option<Found> {
        let image = self.loader.image();
        let topic = image.topics.named(GROUP_TOPIC)?;
        let at = partition_for(group, u32::try_from(topic.partitions.len()).ok().filter(|count| *count > 0)?);
        let leader = image.cluster.broker(topic.partition(at)?.leader?)?;
        let endpoint = leader.endpoints.iter().find(|endpoint| endpoint.name == listener)?;
        Some(Found { node: leader.id.0, host: endpoint.host.clone(), port: i32::from(endpoint.port) })
    }
}

fn told(key: &KafkaString, found: Result<Found, ErrorCode>) -> Coordinator {
    match found {
        Ok(Found { node, host, port }) => Coordinator {
            key: key.clone(),
            node_id: node,
            host,
            port,
            // Kafka's success carries the word as its message.
            error_message: Some(KafkaString::from_static("NONE")),
            ..Default::default()
        },
        Err(code) => Coordinator {
            key: key.clone(),
            node_id: -1,
            port: -1,
            error_code: code.code(),
            error_message: Some(KafkaString::from_static(match code {
                ErrorCode::UnsupportedVersion => "The version of API is not supported.",
                ErrorCode::InvalidRequest => {
                    "This most likely occurs because of a request being malformed by the client library or the message \
                     was sent to an incompatible broker. See the broker logs for more details."
                }
                _ => "The coordinator is not available.",
            })),
            ..Default::default()
        },
    }
}
