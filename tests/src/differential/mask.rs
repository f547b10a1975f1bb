//! What two brokers need not agree on. A masked value keeps its kind: "nothing" (-1, null, empty, the zero id) stays as it
//! is, so that an id is still told from no id, a time from no time.

use serde_json::{Value, json};

/// A field that is masked wherever it stands, and why.
pub const FIELDS: &[(&str, &str)] = &[
    ("TopicId", "ids are random"),
    ("ClusterId", "ids are random"),
    ("ReplicaDirectoryId", "ids are random"),
    ("VoterDirectoryId", "ids are random"),
    ("ProducerId", "ids are handed out in blocks"),
    ("MemberId", "ids are random"),
    ("SessionId", "ids are random"),
    ("Port", "each broker has its own"),
    ("LogDir", "paths differ"),
    ("TotalBytes", "the room of a disk"),
    ("UsableBytes", "the room of a disk"),
    ("PartitionSize", "formats differ"),
    ("LogAppendTimeMs", "time"),
    ("LastTimestamp", "time"),
    ("LastFetchTimestamp", "time"),
    ("LastCaughtUpTimestamp", "time"),
    ("FinalizedFeaturesEpoch", "offset of the metadata log"),
    ("ErrorMessage", "texts are each broker's own"),
    ("BatchIndexErrorMessage", "texts are each broker's own"),
    ("Documentation", "texts are each broker's own"),
];

/// Arrays whose order means nothing: the reference keeps them in hash maps, or puts refused elements last.
pub const UNORDERED: &[&str] = &[
    "Topics",
    "PartitionResponses",
    "Responses",
    "Partitions",
    "Configs",
    "ApiKeys",
    "SupportedFeatures",
    "FinalizedFeatures",
    "Groups",
    "Results",
    "ReplicaElectionResults",
    "ConfigResources",
    "PartitionResult",
    "Members",
];

/// Fields by which elements of such arrays are known: they are brought into the order of these, so that an element is
/// compared with its own counterpart.
const KEYS: &[&str] = &[
    "Index",
    "PartitionIndex",
    "PartitionId",
    "Name",
    "TopicName",
    "Topic",
    "TopicId",
    "ApiKey",
    "GroupId",
    "ResourceType",
    "ResourceName",
    "Feature",
];

fn order(element: &Value) -> (Vec<String>, String) {
    let keys = KEYS.iter().map(|key| element.get(key).map(Value::to_string).unwrap_or_default());
    (keys.collect(), element.to_string())
}

pub fn apply(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map.iter_mut() {
                if FIELDS.iter().any(|(field, _)| field == name) && !inner.is_array() && !inner.is_object() {
                    hide(inner);
                } else {
                    apply(inner);
                }
                if UNORDERED.contains(&name.as_str())
                    && let Value::Array(elements) = inner
                {
                    elements.sort_by_key(order);
                }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(apply),
        _ => {}
    }
}

/// Masks fields that mean something else in other answers.
pub fn hide_fields(value: &mut Value, names: &[&str]) {
    match value {
        Value::Object(map) => map.iter_mut().for_each(|(name, inner)| match inner {
            Value::Array(_) | Value::Object(_) => hide_fields(inner, names),
            inner if names.contains(&name.as_str()) => hide(inner),
            _ => {}
        }),
        Value::Array(elements) => elements.iter_mut().for_each(|element| hide_fields(element, names)),
        _ => {}
    }
}

fn hide(value: &mut Value) {
    let masked = match value {
        Value::String(text) if text.is_empty() || *text == base::Uuid::ZERO.to_string() => return,
        Value::String(_) => "<text>",
        // Ids and times start at 0 for somebody: 0 and more are alike, below 0 is what it says.
        Value::Number(number) if number.as_i64().is_some_and(|number| number >= 0) => "<number>",
        _ => return,
    };
    *value = json!(masked);
}

/// The mask, for the run's output.
pub fn print() {
    println!("Not compared but for being there:");
    for (field, reason) in FIELDS {
        println!("  {field}: {reason}");
    }
    println!(
        "A connection may be closed where the reference answers a request with bytes turned to ones, which may be one still."
    );
    println!("Compared without their order: {}", UNORDERED.join(", "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_values_are_told_from_none_and_order_is_forgotten_where_it_means_nothing() {
        let mut value = json!({
            "Topics": [{ "TopicId": "b" }, { "TopicId": base::Uuid::ZERO.to_string() }],
            "Responses": [2, 1],
            "ProducerId": -1,
            "ErrorMessage": null,
        });
        apply(&mut value);
        let mut other = json!({
            "Topics": [{ "TopicId": base::Uuid::ZERO.to_string() }, { "TopicId": "c" }],
            "Responses": [2, 1],
            "ProducerId": -1,
            "ErrorMessage": null,
        });
        apply(&mut other);
        assert_eq!(value, other);
        let mut different = json!({ "ProducerId": 7, "ErrorMessage": "x" });
        apply(&mut different);
        assert_eq!(different, json!({ "ProducerId": "<number>", "ErrorMessage": "<text>" }));
    }
}
