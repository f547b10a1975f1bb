//! Our batches, read by Apache Kafka's classes.

use crate::text::{describe, java};
use base::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Random, Sequence, WallMillis};
use pollux_batch::{BatchBuilder, BatchProducer, Codec, Compression, EndTransaction, HeaderView};
use std::process::Command;

/// Batches one after the other, as in a segment, in every codec and in sizes around the codecs' blocks.
fn segment() -> Vec<u8> {
    let mut random = Random::from_seed(4);
    let mut bytes = Vec::new();
    let mut offset = 0;
    let levels = [None, Some(1), Some(9)];
    for (codec, level) in Codec::ALL.into_iter().flat_map(|codec| levels.map(|level| (codec, level))) {
        for size in [0usize, 1, 100, 16 << 10, 32 << 10, 64 << 10, (64 << 10) + 1, 200_000] {
            let mut noise = vec![0; size];
            random.fill(&mut noise[..size / 2]);
            let mut builder = BatchBuilder::new();
            let base_sequence = Some(Sequence(offset as i32));
            builder
                .base_offset(Offset(offset))
                .leader_epoch(LeaderEpoch(3))
                .compression(Compression { codec, level })
                .producer(BatchProducer { id: ProducerId(8), epoch: ProducerEpoch(1), base_sequence })
                .transactional(size == 100);
            if size == 1 {
                builder.log_append_time(WallMillis(5000));
            }
            let headers =
                [HeaderView { key: "ключ".as_bytes(), value: Some(b"v") }, HeaderView { key: b"", value: None }];
            builder.append(WallMillis(77), Some(b"key"), Some(&noise), &headers);
            builder.append(WallMillis(70), None, None, &[]);
            bytes.extend(builder.build());
            offset += 2;
        }
    }
    let marker = EndTransaction { committed: false, coordinator_epoch: 2 };
    let mut builder = marker.build(ProducerId(8), ProducerEpoch(1), WallMillis(1));
    bytes.extend(builder.base_offset(Offset(offset)).build());
    bytes
}

#[test]
fn kafkas_classes_read_what_we_write() {
    let bytes = segment();
    let wanted = describe(&bytes, true);
    assert_eq!(wanted.lines().filter(|line| line.starts_with("batch ")).count(), 15 * 8 + 1);
    let Ok(libs) = std::env::var("KAFKA_LIBS") else {
        println!("skipped: kafkas_classes_read_what_we_write (KAFKA_LIBS names no folder of Kafka's jars)");
        return;
    };
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("segment.batches");
    std::fs::write(&file, &bytes).expect("a file");
    let output = Command::new("java")
        .args(["-cp", &format!("{libs}/*")])
        .arg(java().join("BatchGolden.java"))
        .arg("read")
        .arg(&file)
        .output()
        .expect("java runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = String::from_utf8(output.stdout).expect("text");
    let differing = wanted.lines().zip(found.lines()).find(|(ours, kafkas)| ours != kafkas);
    assert_eq!(differing, None);
    assert_eq!(wanted.lines().count(), found.lines().count());
}
