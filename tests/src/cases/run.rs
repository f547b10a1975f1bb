//! The run: every case against the reference, then against the subject, and the comparison of the two results.

use super::known::Known;
use super::{Apart, Bench, Case, skipped};
use crate::differential::MAY_CLOSE;
use crate::jvm::Runner;
use crate::node::Broker;
use crate::{Fault, Result};
use perf::client::{Connection, api_versions_request};
use serde_json::Value;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use wire::ApiKey;

/// Under this name a case tells what differs from run to run, such as times: it is printed, and compared with nothing.
const ASIDE: &str = "aside";

/// What a run prints beside its verdicts, and how much it does.
#[derive(Clone, Copy, Debug)]
pub struct Detail {
    /// Cases about size take the sizes they are about.
    pub long: bool,
    /// What the first broker answered.
    pub answers: bool,
    /// How many differences of a case.
    pub differences: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

#[derive(Debug, Default)]
pub struct Summary {
    pub passed: Vec<String>,
    pub failed: Vec<String>,
    pub skipped: Vec<String>,
}

impl Summary {
    pub fn print(&self) {
        for name in &self.skipped {
            println!("skipped: {name}");
        }
        for name in &self.failed {
            println!("failed: {name}");
        }
        println!("{} passed, {} failed, {} skipped", self.passed.len(), self.failed.len(), self.skipped.len());
    }
}

/// Runs the cases against each broker in turn. With one broker a case passes when it gets through.
pub fn run(
    cases: &[Case],
    brokers: &mut [Box<dyn Broker>],
    java: &RefCell<Runner>,
    served: &[ApiKey],
    known: &Known,
    detail: Detail,
) -> Result<Summary> {
    let mut summary = Summary::default();
    for (number, case) in cases.iter().enumerate() {
        let start = Instant::now();
        let mut results = Vec::new();
        for broker in brokers.iter_mut() {
            let before = broker.pids()?;
            let result =
                run_one(case, number, Surroundings { broker: broker.as_mut(), java, served, long: detail.long });
            let lived = revive(broker.as_mut(), &before)?;
            results.push(if lived { result } else { Err("a process of the node ended, see above".into()) });
        }
        if detail.answers
            && let Some(Ok(value)) = results.first()
        {
            println!("{}", indented(&format!("{value:#}")));
        }
        known.begin(&case.name);
        let verdict = judge(&case.name, &results, brokers, known, detail.differences);
        println!("{} {} ({:.1} s)", mark(&verdict), case.name, start.elapsed().as_secs_f64());
        match verdict {
            Verdict::Passed => summary.passed.push(case.name.clone()),
            Verdict::Failed(report) => {
                println!("{}", indented(&report));
                summary.failed.push(case.name.clone());
            }
            Verdict::Skipped(reason) => {
                println!("{}", indented(&reason));
                summary.skipped.push(format!("{}: {reason}", case.name));
            }
        }
    }
    Ok(summary)
}

fn mark(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "ok  ",
        Verdict::Failed(_) => "FAIL",
        Verdict::Skipped(_) => "skip",
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("     {line}")).collect::<Vec<_>>().join("\n")
}

struct Surroundings<'a> {
    broker: &'a mut dyn Broker,
    java: &'a RefCell<Runner>,
    served: &'a [ApiKey],
    long: bool,
}

fn run_one(case: &Case, number: usize, around: Surroundings<'_>) -> Result<Value> {
    // Without the process's number a second run against a node that was kept would meet the names of the first.
    let prefix = format!("c{number:03}-");
    let Surroundings { broker, java, served, long } = around;
    let mut bench = Bench { broker, java, prefix: prefix.clone(), served, long };
    let mut value = (case.run)(&mut bench)?;
    if let Some(aside) = value.as_object_mut().and_then(|told| told.remove(ASIDE)) {
        println!("     {} beside {}: {aside}", bench.broker.name(), case.name);
    }
    let plain = value.to_string().replace(&prefix, "");
    Ok(serde_json::from_str(&plain)?)
}

/// Whether the node has the processes it had before the case. One that a case brought down is started again, so that
/// the next case tells of itself only; a supervisor that did so already hides nothing.
fn revive(broker: &mut dyn Broker, before: &[u32]) -> Result<bool> {
    let serves = Connection::open(broker.address(), Duration::from_secs(20))
        .and_then(|mut connection| connection.call(3, &api_versions_request()));
    if serves.is_ok() && broker.pids()? == before {
        return Ok(true);
    }
    println!("     {} lost a process; it said last:", broker.name());
    println!("{}", indented(&broker.log_tail()));
    broker.kill(crate::node::Victim::Everything)?;
    broker.start()?;
    Ok(false)
}

fn judge(case: &str, results: &[Result<Value>], brokers: &[Box<dyn Broker>], known: &Known, shown: usize) -> Verdict {
    let mut faults = Vec::new();
    let alone = |(index, result): &(usize, &Result<Value>)| {
        index + 1 < results.len() && result.as_ref().is_err_and(|fault| fault.downcast_ref::<Apart>().is_some())
    };
    for (index, result) in results.iter().enumerate().filter(|found| !alone(found)) {
        let broker = &brokers[index];
        match result {
            Err(fault) if skipped(fault).is_some() => {
                return Verdict::Skipped(skipped(fault).unwrap_or_default().to_owned());
            }
            Err(fault) => faults.push(format!("{}: {}", broker.name(), first_lines(fault))),
            Ok(_) => {}
        }
    }
    if !faults.is_empty() {
        return Verdict::Failed(faults.join("\n"));
    }
    let mut values = results.iter().flatten();
    let Some(reference) = values.next() else { return Verdict::Failed("no broker".to_owned()) };
    let mut report = Vec::new();
    for (value, broker) in values.zip(brokers.iter().skip(1)) {
        let mut found = Vec::new();
        differences("", reference, value, &mut found);
        found.retain(|difference| !known.covers(case, &difference.path));
        let more = found.len().saturating_sub(shown);
        report.extend(
            found.into_iter().take(shown).map(|found| format!("{}: {}: {}", broker.name(), found.path, found.text)),
        );
        if more > 0 {
            report.push(format!("and {more} more differences"));
        }
    }
    if report.is_empty() { Verdict::Passed } else { Verdict::Failed(report.join("\n")) }
}

fn first_lines(fault: &Fault) -> String {
    const LINES: usize = 20;
    fault.to_string().lines().take(LINES).collect::<Vec<_>>().join("\n")
}

/// Where two values differ, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Difference {
    path: String,
    text: String,
}

fn differences(path: &str, reference: &Value, subject: &Value, found: &mut Vec<Difference>) {
    match (reference, subject) {
        (Value::Object(a), Value::Object(b)) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let inner = format!("{path}/{name}");
                let one = |map: &serde_json::Map<String, Value>| map.get(name).cloned();
                if name == MAY_CLOSE && b.get(name).is_some_and(|value| value == "closed") {
                    continue;
                }
                match (one(a), one(b)) {
                    (Some(x), Some(y)) => differences(&inner, &x, &y, found),
                    (Some(x), None) => {
                        found.push(Difference { path: inner, text: format!("{} is missing", short(&x)) })
                    }
                    (None, Some(y)) => {
                        found.push(Difference { path: inner, text: format!("{} is not in the reference", short(&y)) });
                    }
                    (None, None) => {}
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (x, y)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{index}"), x, y, found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            let text = format!("{} instead of {}", short(b), short(a));
            found.push(Difference { path: path.to_owned(), text });
        }
    }
}

fn short(value: &Value) -> String {
    const LENGTH: usize = 300;
    let text = value.to_string();
    if text.chars().count() <= LENGTH { text } else { text.chars().take(LENGTH).collect::<String>() + ".." }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_name_the_path_and_both_values() {
        let mut found = Vec::new();
        let reference = json!({ "a": [1, { "b": 2 }], "gone": 1, "same": null });
        let subject = json!({ "a": [1, { "b": 3 }], "new": 1, "same": null });
        differences("", &reference, &subject, &mut found);
        let lines: Vec<String> = found.iter().map(|found| format!("{}: {}", found.path, found.text)).collect();
        assert_eq!(lines, ["/a/1/b: 3 instead of 2", "/gone: 1 is missing", "/new: 1 is not in the reference"]);
        found.clear();
        differences("", &json!({ MAY_CLOSE: { "answer": 1 } }), &json!({ MAY_CLOSE: "closed" }), &mut found);
        assert_eq!(found.len(), 0, "{found:?}");
        differences("", &json!([1, 2]), &json!([1]), &mut found);
        assert_eq!(found, [Difference { path: String::new(), text: "[1] instead of [1,2]".to_owned() }]);
    }
}
