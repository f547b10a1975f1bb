//! Topics that nobody asked the controller for by name: those that clients may create by using them, and the internal
//! ones.

use crate::held::Then;
use crate::link_end::own_context;
use crate::node::Node;
use base::Now;
use std::collections::BTreeSet;
use wire::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use wire::messages::{CreateTopicsRequest, CreateTopicsResponse};
use wire::{ApiKey, ErrorCode};

/// Where groups and their offsets are kept.
pub(crate) const GROUP_TOPIC: &str = "__consumer_offsets";
const TRANSACTION_TOPIC: &str = "__transaction_state";
const SHARE_TOPIC: &str = "__share_group_state";

/// Names on their way to the controller: a client that asks again meanwhile changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Creating(BTreeSet<String>);

impl Creating {
    pub fn done(&mut self, names: &[String]) {
        for name in names {
            self.0.remove(name);
        }
    }
}

impl Node {
    /// The dataplane's clients named topics that are not there and may be (auto.create.topics.enable was checked there,
    /// as the broker's own part of it).
    pub(crate) fn auto_create(&mut self, names: &[String], now: Now) {
        let values = *self.settings.typed();
        let topics = names.iter().filter_map(|name| match name.as_str() {
            GROUP_TOPIC => Some(self.group_topic()),
            // Without their coordinators they would be topics with the wrong settings.
            TRANSACTION_TOPIC | SHARE_TOPIC => None,
            _ => Some(CreatableTopic {
                name: name.as_str().into(),
                num_partitions: values.num_partitions,
                replication_factor: i16::try_from(values.default_replication_factor).unwrap_or(i16::MAX),
                ..Default::default()
            }),
        });
        let topics = topics.collect();
        self.create(topics, now);
    }

    pub(crate) fn create_group_topic(&mut self, now: Now) {
        let topic = self.group_topic();
        self.create(vec![topic], now);
    }

    fn group_topic(&self) -> CreatableTopic {
        let values = self.settings.typed();
        let config = |name: &'static str, value: String| CreatableTopicConfig {
            name: name.into(),
            value: Some(value.into()),
            ..Default::default()
        };
        CreatableTopic {
            name: GROUP_TOPIC.into(),
            num_partitions: values.offsets_topic_num_partitions,
            replication_factor: i16::try_from(values.offsets_topic_replication_factor).unwrap_or(i16::MAX),
            configs: vec![
                config("cleanup.policy", "compact".to_owned()),
                config("compression.type", "producer".to_owned()),
                config("segment.bytes", values.offsets_topic_segment_bytes.to_string()),
            ],
            ..Default::default()
        }
    }

    fn create(&mut self, mut topics: Vec<CreatableTopic>, now: Now) {
        let image = self.loader.image();
        topics.retain(|topic| image.topics.id(&topic.name).is_none() && !self.creating.0.contains(topic.name.as_str()));
        if topics.is_empty() || !self.controller.is_active() {
            return;
        }
        let names: Vec<String> = topics.iter().map(|topic| topic.name.to_string()).collect();
        self.creating.0.extend(names.iter().cloned());
        let timeout_ms = self.settings.typed().request_timeout_ms;
        let request = CreateTopicsRequest { topics, timeout_ms, ..Default::default() };
        self.ask(&own_context(ApiKey::CreateTopics), &request.into(), Then::TopicsCreated(names), now);
    }

    pub(crate) fn on_topics_created(&mut self, names: &[String], response: &CreateTopicsResponse) {
        self.creating.done(names);
        for topic in &response.topics {
            let (name, code) = (topic.name.as_str(), topic.error_code);
            if code == 0 || code == ErrorCode::TopicAlreadyExists.code() {
                tracing::info!(name, "a topic was created on use");
            } else {
                let why = topic.error_message.as_ref().map_or("", |message| message.as_str());
                tracing::warn!(name, code, why, "a topic could not be created on use");
            }
        }
    }
}
