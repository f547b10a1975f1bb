//! Frames that each hold a part of a core's memory while they wait for the rest of theirs.

mod common;

use base::*;
use bytes::{Bytes, BytesMut};
use common::{Bench, TOPIC};
use handoff::Command;
use net::Streams;
use net::sim::{SimFaults, SimPeer};
use pollux_session::Turn;
use std::time::Duration;
use wire::encode_request;
use wire::messages::ProduceRequest;
use wire::messages::produce_request::{PartitionProduceData, TopicProduceData};

const MEMORY: usize = 2 << 20;
const CLIENTS: usize = 9;

fn large_frame() -> Vec<u8> {
    let records = Some(Bytes::from(vec![7; 700 << 10]));
    let data = PartitionProduceData { index: 0, records, ..Default::default() };
    let topic = TopicProduceData { topic_id: TOPIC.0, partition_data: vec![data], ..Default::default() };
    let request = ProduceRequest { acks: -1, timeout_ms: 1000, topic_data: vec![topic], ..Default::default() };
    let mut out = BytesMut::new();
    encode_request(&mut out, 13, 1, None, &request).expect("it can be written");
    out.to_vec()
}

/// Together they are more than the memory, and all of them begin before any is whole: each is served all the same, and no
/// connection ends for it.
#[test]
fn frames_that_wait_for_one_anothers_memory_are_served_one_after_the_other() {
    let Bench { mut now, arena, network, mut net, mut sessions } =
        Bench::new(SimFaults::none(), MEMORY, MEMORY / 2, &[]);
    let mut random = Random::from_seed(1);
    let frame = large_frame();
    let mut peers: Vec<SimPeer> = (0..CLIENTS).map(|_| common::connect(&network)).collect();
    let (mut sent, mut produced) = (0, 0);
    for _ in 0..20_000 {
        if sent < frame.len() {
            let end = (sent + 50_000).min(frame.len());
            peers.iter_mut().for_each(|peer| peer.write(&frame[sent..end]));
            sent = end;
        }
        let mut events = Vec::new();
        net.poll(now, 64, &mut events);
        let mut turn = Turn { now, random: &mut random, net: &mut net, arena: &arena };
        for event in events {
            common::on_event(&mut sessions, &mut turn, event);
        }
        sessions.on_events_taken(&mut turn);
        sessions.on_time(&mut turn);
        produced += sessions.out.commands.drain(..).filter(|(_, one)| matches!(one, Command::Produce(_))).count();
        assert!(sessions.out.ended.is_empty(), "{:?}", sessions.out.ended);
        net.flush(now);
        now.monotonic = now.monotonic + Duration::from_micros(100);
        if produced == CLIENTS {
            return;
        }
    }
    panic!("{produced} of {CLIENTS} frames were read in two seconds; {} bytes are free", arena.free_bytes());
}
