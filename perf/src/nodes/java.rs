//! The reference's jars and the command line of a JVM.

use super::Result;
use super::reference::prefixed;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// The folder of the workspace's sources.
pub fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of Apache Kafka's jars: named by KAFKA_LIBS, else `target/kafka-libs` of the workspace.
pub fn jars() -> Result<PathBuf> {
    let default = || workspace().join("target/kafka-libs");
    let path = std::env::var_os("KAFKA_LIBS").map_or_else(default, PathBuf::from);
    let broker = path.join("kafka_2.13-4.4.0.jar");
    if broker.is_file() {
        return Ok(path);
    }
    Err(format!(
        "{} is missing: run mvn -f tests/conformance/reference/pom.xml dependency:copy-dependencies \
         -DoutputDirectory=$PWD/target/kafka-libs, or name the folder of the jars in KAFKA_LIBS",
        broker.display()
    )
    .into())
}

/// Options that start a JVM quickly and keep it small.
pub fn quick_options() -> Vec<String> {
    ["-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx768m"].map(str::to_owned).into()
}

/// The options of Kafka's own start script, for measuring.
pub fn kafka_options() -> Vec<String> {
    [
        "-Xmx1G",
        "-Xms1G",
        "-server",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent",
        "-XX:MaxInlineLevel=15",
        "-Djava.awt.headless=true",
    ]
    .map(str::to_owned)
    .into()
}

/// A JVM with the jars and our classes' settings; the main class and its arguments are the caller's.
pub fn java(options: &[String], prefix: &[String]) -> Result<Command> {
    let mut command = prefixed(prefix, OsStr::new("java"));
    let logging = workspace().join("tests/conformance/java/log4j2.properties");
    command.args(options).arg(format!("-Dlog4j2.configurationFile={}", logging.display()));
    command.arg("-cp").arg(format!("{}/*", jars()?.display()));
    Ok(command)
}
