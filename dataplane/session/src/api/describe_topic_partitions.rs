//! DescribeTopicPartitions (KIP-966): topics in the order of their names, cut at a number of partitions.

use super::{Asker, operations};
use view::Topic;
use wire::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use wire::messages::{DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};
use wire::{ErrorCode, KafkaString};

/// `limit` is `max.request.partition.size.limit`. A cursor before the first partition refuses the whole request.
pub fn answer(
    asker: Asker<'_>,
    request: &DescribeTopicPartitionsRequest,
    limit: i32,
) -> DescribeTopicPartitionsResponse {
    let mut names: Vec<KafkaString> = if request.topics.is_empty() {
        asker.view.topics().map(|topic| KafkaString::from(&*topic.name)).collect()
    } else {
        request.topics.iter().map(|topic| topic.name.clone()).collect()
    };
    names.sort();
    names.dedup();
    let mut first = 0;
    if let Some(cursor) = &request.cursor {
        if cursor.partition_index < 0 {
            return refused(request, ErrorCode::InvalidRequest);
        }
        names.retain(|name| *name >= cursor.topic_name);
        if names.first() == Some(&cursor.topic_name) {
            first = cursor.partition_index as usize;
        }
    }
    let mut room = request.response_partition_limit.min(limit).max(0) as usize;
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in &names {
        if room == 0 {
            response.next_cursor = Some(cursor(name, first));
            break;
        }
        let Some(topic) = asker.view.topic(name) else {
            // A topic that was deleted between two pages of a whole listing is simply gone.
            if !request.topics.is_empty() {
                response.topics.push(missing(name));
            }
            first = 0;
            continue;
        };
        let end = topic.partitions.len().min(first + room);
        response.topics.push(describe(asker, topic, first..end));
        room -= end.saturating_sub(first);
        if end < topic.partitions.len() {
            response.next_cursor = Some(cursor(name, end));
            break;
        }
        first = 0;
    }
    response
}

fn refused(request: &DescribeTopicPartitionsRequest, error: ErrorCode) -> DescribeTopicPartitionsResponse {
    let topics = request.topics.iter().map(|topic| DescribeTopicPartitionsResponseTopic {
        error_code: error.code(),
        name: Some(topic.name.clone()),
        topic_authorized_operations: operations::NOT_ASKED,
        ..Default::default()
    });
    DescribeTopicPartitionsResponse { topics: topics.collect(), ..Default::default() }
}

fn cursor(name: &KafkaString, partition: usize) -> Cursor {
    Cursor { topic_name: name.clone(), partition_index: partition as i32, ..Default::default() }
}

fn missing(name: &KafkaString) -> DescribeTopicPartitionsResponseTopic {
    let valid = super::is_valid_topic_name(name);
    let error = if valid { ErrorCode::UnknownTopicOrPartition } else { ErrorCode::InvalidTopicException };
    DescribeTopicPartitionsResponseTopic {
        error_code: error.code(),
        name: Some(name.clone()),
        topic_authorized_operations: operations::TOPIC,
        ..Default::default()
    }
}

fn describe(asker: Asker<'_>, topic: &Topic, range: std::ops::Range<usize>) -> DescribeTopicPartitionsResponseTopic {
    let ids = |nodes: &[base::NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<i32>>();
    let shown = topic.partitions.get(range).unwrap_or_default();
    let partitions = shown.iter().map(|partition| {
        let leader = partition.leader.filter(|leader| asker.endpoint(*leader).is_some());
        let error = if leader.is_some() { ErrorCode::None } else { ErrorCode::LeaderNotAvailable };
        DescribeTopicPartitionsResponsePartition {
            error_code: error.code(),
            partition_index: partition.index.0,
            leader_id: leader.map_or(-1, |leader| leader.0),
            leader_epoch: partition.leader_epoch.0,
            replica_nodes: ids(&partition.replicas),
            isr_nodes: ids(&partition.isr),
            eligible_leader_replicas: Some(ids(&partition.eligible_leader_replicas)),
            last_known_elr: Some(ids(&partition.last_known_elr)),
            offline_replicas: ids(&partition.offline),
            ..Default::default()
        }
    });
    DescribeTopicPartitionsResponseTopic {
        name: Some(KafkaString::from(&*topic.name)),
        topic_id: topic.id.0,
        is_internal: topic.is_internal(),
        partitions: partitions.collect(),
        topic_authorized_operations: operations::TOPIC,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::test_view::{broker, topic, view};
    use base::NodeId;
    use wire::messages::describe_topic_partitions_request as request;

    #[test]
    fn pages_follow_one_another_without_gap_or_repeat() {
        let leaders = [Some(1); 5];
        let changes =
            vec![broker(1, false, &["A"]), topic(1, "a", &leaders), topic(2, "b", &leaders), topic(3, "c", &leaders)];
        let view = view(changes);
        let asker = Asker { view: &view, node: NodeId(1), cluster_id: "c", listener_name: "A" };
        for limit in 1..16 {
            let mut asked =
                request::DescribeTopicPartitionsRequest { response_partition_limit: limit, ..Default::default() };
            let mut seen = Vec::new();
            loop {
                let page = answer(asker, &asked, 2000);
                for topic in &page.topics {
                    let name = topic.name.clone().unwrap();
                    seen.extend(topic.partitions.iter().map(|p| (name.to_string(), p.partition_index)));
                }
                let Some(next) = page.next_cursor else { break };
                asked.cursor = Some(request::Cursor {
                    topic_name: next.topic_name,
                    partition_index: next.partition_index,
                    ..Default::default()
                });
            }
            let all: Vec<_> = ["a", "b", "c"].iter().flat_map(|t| (0..5).map(|i| (t.to_string(), i))).collect();
            assert_eq!(seen, all, "limit {limit}");
        }
    }
}
