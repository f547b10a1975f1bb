//! The README's tables, made from the code, so that they cannot say anything else than the code does.

use session::route;
use std::fmt::Write;
use wire::ApiKey;

pub fn table(name: &str) -> Option<String> {
    match name {
        "apis" => Some(apis()),
        "broker-settings" => Some(settings::settings_markdown(settings::Scope::Broker)),
        "topic-settings" => Some(settings::settings_markdown(settings::Scope::Topic)),
        "own-settings" => Some(settings::own_settings_markdown()),
        _ => None,
    }
}

/// API, versions here, versions of Kafka 4.4's broker.
fn apis() -> String {
    let mut out = String::from("| API | key | Pollux | Kafka 4.4 |\n|---|---|---|---|\n");
    for api in ApiKey::ALL.iter().filter(|api| api.info().on_broker) {
        let kafka = api.advertised_versions();
        let ours = match route::route(*api) {
            Some(_) => {
                let ours = route::advertised(*api);
                format!("{}-{}", ours.min, ours.max)
            }
            None => "no".to_owned(),
        };
        writeln!(out, "| {} | {} | {ours} | {}-{} |", api.name(), api.code(), kafka.min, kafka.max)
            .expect("writing to a string");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_broker_api_has_a_row() {
        let rows = apis().lines().count() - 2;
        assert_eq!(rows, ApiKey::ALL.iter().filter(|api| api.info().on_broker).count());
        assert!(table("nothing").is_none());
    }
}
