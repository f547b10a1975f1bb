//! FindCoordinator, where the view can answer it: groups, once their topic is there (KIP-699).

use super::Asker;
use view::Topic;
use wire::messages::find_coordinator_response::Coordinator;
use wire::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use wire::{ErrorCode, KafkaString};

/// Coordinator keys in a list from here on.
const LISTS_SINCE: i16 = 4;
const GROUP: i8 = 0;
const GROUP_TOPIC: &str = "__consumer_offsets";

/// The partition of an internal topic that a key belongs to: Java's hash of the string, made non-negative.
pub fn partition_for(key: &str, partitions: usize) -> usize {
    let hash = key.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    (hash & i32::MAX) as usize % partitions
}

/// `None` where only the control plane can say: another kind of key, or a topic that must be created first.
pub fn answer(asker: Asker<'_>, request: &FindCoordinatorRequest, version: i16) -> Option<FindCoordinatorResponse> {
    let key_type = if version >= 1 { request.key_type } else { GROUP };
    if key_type != GROUP {
        return None;
    }
    let topic = asker.view.topic(GROUP_TOPIC).filter(|topic| !topic.partitions.is_empty())?;
    if version >= LISTS_SINCE {
        // In lists Kafka leaves the message empty.
        let find_one = |key: &KafkaString| {
            let found = find(asker, topic, key);
            let error_message = Some(KafkaString::from_static(""));
            if found.error_code == 0 { Coordinator { error_message, ..found } } else { found }
        };
        let coordinators = request.coordinator_keys.iter().map(find_one).collect();
        return Some(FindCoordinatorResponse { coordinators, ..Default::default() });
    }
    let found = find(asker, topic, &request.key);
    Some(FindCoordinatorResponse {
        error_code: found.error_code,
        error_message: found.error_message,
        node_id: found.node_id,
        host: found.host,
        port: found.port,
        ..Default::default()
    })
}

fn find(asker: Asker<'_>, topic: &Topic, key: &KafkaString) -> Coordinator {
    let partition = &topic.partitions[partition_for(key, topic.partitions.len())];
    match partition.leader.and_then(|leader| asker.endpoint(leader)) {
        Some(endpoint) => Coordinator {
            key: key.clone(),
            node_id: endpoint.node.0,
            host: endpoint.host,
            port: endpoint.port,
            // Kafka's success carries the word as its message.
            error_message: Some(KafkaString::from_static("NONE")),
            ..Default::default()
        },
        None => Coordinator {
            key: key.clone(),
            node_id: -1,
            port: -1,
            error_code: ErrorCode::CoordinatorNotAvailable.code(),
            ..Default::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::test_view::{broker, topic, view};
    use base::NodeId;

    #[test]
    fn keys_hash_as_java_does() {
        // String.hashCode: "" 0, "a" 97, "ab" 3105, "group" 98629247, "polygenelubricants" the smallest int.
        assert_eq!(partition_for("", 50), 0);
        assert_eq!(partition_for("a", 50), 47);
        assert_eq!(partition_for("ab", 50), 5);
        assert_eq!(partition_for("group", 50), 98_629_247 % 50);
        assert_eq!(partition_for("polygenelubricants", 50), 0);
        assert_eq!(partition_for("\u{1F600}", 1 << 20), (55357 * 31 + 56832) % (1 << 20));
    }

    #[test]
    fn groups_are_found_once_their_topic_is_there() {
        let request = FindCoordinatorRequest { key: KafkaString::from_static("a"), ..Default::default() };
        let empty = view(vec![broker(1, false, &["A"])]);
        let asker = Asker { view: &empty, node: NodeId(1), cluster_id: "c", listener_name: "A" };
        assert_eq!(answer(asker, &request, 3), None);
        let full = view(vec![broker(1, false, &["A"]), topic(1, GROUP_TOPIC, &[Some(1)])]);
        let asker = Asker { view: &full, ..asker };
        assert_eq!(answer(asker, &request, 3).unwrap().node_id, 1);
        let share = FindCoordinatorRequest { key_type: 2, ..request.clone() };
        assert_eq!(answer(asker, &share, 6), None);
        let leaderless = view(vec![broker(1, false, &["A"]), topic(1, GROUP_TOPIC, &[None])]);
        let asker = Asker { view: &leaderless, ..asker };
        assert_eq!(answer(asker, &request, 3).unwrap().error_code, 15);
    }
}
