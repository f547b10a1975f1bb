//! The first records of a leadership, and of a cluster.

use crate::controller::Options;
use crate::error::ApiError;
use crate::state::State;
use image::{FEATURE_ELR, MetadataVersion, Record, resource_type};
use std::collections::BTreeMap;
use wire::messages::FeatureLevelRecord;
use wire::messages::{AbortTransactionRecord, BeginTransactionRecord, ConfigRecord, EndTransactionRecord};
use wire::{ErrorCode, MetadataRecordKind};

pub(crate) fn feature_level(name: &str, level: i16) -> Record {
    Record::v0(FeatureLevelRecord { name: name.into(), feature_level: level, unknown_tags: Default::default() })
}

pub(crate) fn config(resource_type: i8, resource_name: &str, name: &str, value: Option<&str>) -> Record {
    Record::v0(ConfigRecord {
        resource_type,
        resource_name: resource_name.into(),
        name: name.into(),
        value: value.map(Into::into),
        unknown_tags: Default::default(),
    })
}

/// What a format leaves in the bootstrap snapshot, in Kafka's order: the level of metadata.version, then those of other
/// features that are above 0, by name.
pub fn bootstrap_records(version: MetadataVersion, features: &BTreeMap<String, i16>) -> Vec<Record> {
    let others = features.iter().filter(|(_, level)| **level > 0);
    let others = others.map(|(name, level)| feature_level(name, *level));
    std::iter::once(feature_level(MetadataVersion::FEATURE, version.0)).chain(others).collect()
}

fn level_in(records: &[Record], feature: &str) -> Option<i16> {
    records.iter().rev().find_map(|record| match &record.kind {
        MetadataRecordKind::FeatureLevel(r) if r.name == feature => Some(r.feature_level),
        _ => None,
    })
}

/// `before` is the state before an open transaction, if one is open: what counts is what stands without it.
pub(crate) fn records(options: &Options, state: &State, before: Option<&State>) -> Result<Vec<Record>, ApiError> {
    let mut records = Vec::new();
    let level = before.unwrap_or(state).image.features.metadata_version;
    let bootstrap = level_in(&options.bootstrap, MetadataVersion::FEATURE).map(MetadataVersion);
    let Some(effective) = level.or(bootstrap) else {
        let message = "the bootstrap snapshot names no metadata.version".to_owned();
        return Err(ApiError::new(ErrorCode::UnknownServerError, message));
    };
    if before.is_some() {
        if !effective.has_transactions() {
            let message = format!("a metadata transaction is open, which metadata.version {effective} does not have");
            return Err(ApiError::new(ErrorCode::UnknownServerError, message));
        }
        records.push(Record::v0(AbortTransactionRecord {
            reason: Some("Controller failover".into()),
            unknown_tags: Default::default(),
        }));
    }
    if level.is_some() {
        return Ok(records);
    }
    // An empty log: everything it starts with appears at once, or, if this controller dies in between, not at all.
    if effective.has_transactions() {
        records.push(Record::v0(BeginTransactionRecord {
            name: Some("Bootstrap records".into()),
            unknown_tags: Default::default(),
        }));
    }
    records.extend(options.bootstrap.iter().cloned());
    if level_in(&options.bootstrap, FEATURE_ELR).is_some_and(|level| level > 0) {
        let minimum = options.settings.typed().min_insync_replicas.to_string();
        records.push(config(resource_type::BROKER, "", "min.insync.replicas", Some(&minimum)));
    }
    if effective.has_transactions() {
        records.push(Record::v0(EndTransactionRecord::default()));
    }
    Ok(records)
}
