//! Random operations with appends that succeed, are refused or end unknown: a node that replays the log answers as the
//! one that wrote it, and what was acknowledged is there.

mod common;

use base::{PartitionIndex, Random};
use common::groups::{commit, commit_as, fetch, heartbeat, join, join_static, leave, sync};
use common::{World, error};
use pollux_coordinators::{AppendResult, Event, RequestToken};
use std::collections::BTreeMap;
use std::time::Duration;
use wire::messages::offset_delete_request::{OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use wire::messages::*;
use wire::{ErrorCode, KafkaString, ResponseKind};

const GROUPS: [&str; 4] = ["one", "two", "three", "four"];

/// A client that plays one member: what it knows, and what it waits for.
#[derive(Clone, Debug, Default)]
struct Player {
    group: &'static str,
    instance: Option<String>,
    id: KafkaString,
    generation: i32,
    leads: Vec<KafkaString>,
    waits: Option<RequestToken>,
}

struct Play {
    world: World,
    random: Random,
    players: Vec<Player>,
    /// Commits under way: what they say, to be believed once acknowledged.
    commits: Vec<(RequestToken, &'static str, i32, i64)>,
    /// The newest acknowledged or possible offsets of a partition; the first was acknowledged.
    offsets: BTreeMap<(&'static str, i32), Vec<i64>>,
    counter: i64,
}

impl Play {
    fn new(seed: u64) -> Play {
        let mut world = World::new(&[("group.initial.rebalance.delay.ms", "50"), ("message.max.bytes", "1500")]);
        world.holding = true;
        let mut players = Vec::new();
        for group in GROUPS {
            for i in 0..3 {
                let instance = (i == 2).then(|| format!("seat-{group}"));
                players.push(Player { group, instance, ..Player::default() });
            }
        }
        Play {
            world,
            random: Random::from_seed(seed),
            players,
            commits: Vec::new(),
            offsets: BTreeMap::new(),
            counter: 0,
        }
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=7 => {
                let at = self.random.below(self.players.len() as u64) as usize;
                let mut player = std::mem::take(&mut self.players[at]);
                self.play(&mut player);
                self.players[at] = player;
            }
            8 | 9 => self.commit_simple(),
            10 => self.delete(),
            11 => {
                let time = Duration::from_millis(1 + self.random.below(4000));
                self.world.pass(time);
            }
            _ => {}
        }
        self.end_appends();
        self.collect_commits();
    }

    fn end_appends(&mut self) {
        self.world.end_turn();
        while let Some((id, partition, offset)) = self.world.reads.pop_front() {
            self.world.read(id, partition, offset);
        }
        if self.world.appends.is_empty() || self.random.chance(1, 3) {
            return;
        }
        match self.random.below(12) {
            0 => self.world.end_append(AppendResult::Refused(ErrorCode::NotEnoughReplicas)),
            1 => {
                if self.random.chance(1, 2) {
                    let batches = self.world.appends[0].batches.clone();
                    self.world.logs.entry(PartitionIndex(0)).or_default().append(&batches);
                }
                self.world.end_append(AppendResult::Unknown);
            }
            _ => self.world.finish_append(),
        }
    }

    /// A commit that was acknowledged replaces what was known; one that failed may yet have happened.
    fn collect_commits(&mut self) {
        let commits = std::mem::take(&mut self.commits);
        for (token, group, partition, offset) in commits {
            let Some(answer) = self.world.answer(token) else {
                self.commits.push((token, group, partition, offset));
                continue;
            };
            let ResponseKind::OffsetCommit(response) = answer else { panic!("{answer:?}") };
            let known = self.offsets.entry((group, partition)).or_default();
            if response.topics[0].partitions[0].error_code == 0 {
                known.clear();
            }
            known.push(offset);
        }
    }

    fn commit_simple(&mut self) {
        let group = GROUPS[self.random.below(4) as usize];
        let partition = self.random.below(3) as i32;
        self.counter += 1;
        let token = self.world.ask(8, commit(group, "orders", &[(partition, self.counter)]));
        self.commits.push((token, group, partition, self.counter));
    }

    fn delete(&mut self) {
        let group = GROUPS[self.random.below(4) as usize];
        // What is deleted may be gone, or not.
        for partition in 0..3 {
            self.offsets.entry((group, partition)).or_default().push(-1);
        }
        if self.random.chance(1, 2) {
            self.world.ask(2, DeleteGroupsRequest { groups_names: vec![group.into()], ..Default::default() });
        } else {
            let partitions = vec![OffsetDeleteRequestPartition { partition_index: self.random.below(3) as i32 }];
            let topics = vec![OffsetDeleteRequestTopic { name: "orders".into(), partitions }];
            self.world.ask(0, OffsetDeleteRequest { group_id: group.into(), topics });
        }
    }

    fn play(&mut self, player: &mut Player) {
        if let Some(token) = player.waits {
            match self.world.answer(token) {
                None => return,
                Some(ResponseKind::JoinGroup(joined)) => self.joined(player, joined),
                Some(ResponseKind::SyncGroup(synced)) => self.synced(player, &synced),
                Some(_) => player.waits = None,
            }
            return;
        }
        if player.generation == 0 {
            let mut request = match &player.instance {
                Some(instance) => join_static(player.group, &player.id, instance),
                None => join(player.group, &player.id),
            };
            request.rebalance_timeout_ms = 5_000;
            player.waits = Some(self.world.ask(9, request));
            return;
        }
        match self.random.below(8) {
            0 => {
                self.world.ask(5, leave(player.group, &[(&player.id, None)]));
                *player = Player { group: player.group, instance: player.instance.clone(), ..Player::default() };
            }
            // It restarts and forgets who it was.
            1 => *player = Player { group: player.group, instance: player.instance.clone(), ..Player::default() },
            2 => {
                let (partition, offset) = (self.random.below(3) as i32, self.counter + 1);
                self.counter += 1;
                let request = commit_as(player.group, &player.id, player.generation, &[(partition, offset)]);
                let token = self.world.ask(9, request);
                self.commits.push((token, player.group, partition, offset));
            }
            _ => {
                let token = self.world.ask(4, heartbeat(player.group, &player.id, player.generation));
                player.waits = Some(token);
                // Whatever it is told, it joins again now and then.
                if self.random.chance(1, 4) {
                    player.generation = 0;
                }
            }
        }
    }

    fn joined(&mut self, player: &mut Player, joined: JoinGroupResponse) {
        player.waits = None;
        match error(joined.error_code) {
            ErrorCode::MemberIdRequired => player.id = joined.member_id,
            ErrorCode::None => {
                player.id = joined.member_id;
                player.generation = joined.generation_id;
                player.leads = joined.members.into_iter().map(|member| member.member_id).collect();
                // Some never ask for their assignment.
                if self.random.chance(9, 10) {
                    let assignments: Vec<(&str, &[u8])> =
                        player.leads.iter().map(|id| (id.as_str(), id.as_bytes())).collect();
                    let request = sync(player.group, &player.id, player.generation, &assignments);
                    player.waits = Some(self.world.ask(5, request));
                }
            }
            ErrorCode::UnknownMemberId | ErrorCode::FencedInstanceId => player.id = KafkaString::default(),
            _ => {}
        }
    }

    fn synced(&mut self, player: &mut Player, synced: &SyncGroupResponse) {
        player.waits = None;
        if synced.error_code != 0 {
            player.generation = 0;
        }
    }

    /// All appends succeed from here on; then the node and one that replays its log are asked the same.
    fn check(mut self, seed: u64) -> (usize, usize) {
        self.world.holding = false;
        self.world.event(Event::Time);
        self.collect_commits();
        let mut again = self.world.replayed();
        let mut compared = 0;
        for group in GROUPS {
            let request = || fetch(&[(group, None)], false);
            let live = self.world.call(9, request());
            assert_eq!(live, again.call(9, request()), "seed {seed}: offsets of {group}");
            for partition in 0..3 {
                let offset = self.world.committed(group, partition);
                let known = self.offsets.get(&(group, partition)).cloned().unwrap_or_else(|| vec![-1]);
                assert!(known.contains(&offset), "seed {seed}: {group} {partition} is {offset}, not of {known:?}");
            }
            let live = self.world.describe(group);
            let replayed = again.describe(group);
            assert_eq!(live.group_state == "Dead", replayed.group_state == "Dead", "seed {seed}: {group}");
            if live.group_state == "Stable" {
                assert_eq!(live, replayed, "seed {seed}: {group}");
                compared += 1;
            }
        }
        (compared, self.world.logs[&PartitionIndex(0)].count)
    }
}

#[test]
fn a_replayed_log_answers_as_the_one_who_wrote_it() {
    let (mut stable, mut appends) = (0, 0);
    for seed in 0..200 {
        let mut play = Play::new(seed);
        for _ in 0..400 {
            play.step();
        }
        let (compared, count) = play.check(seed);
        stable += compared;
        appends += count;
    }
    assert!(stable > 20 && appends > 6_000, "{stable} stable groups compared, {appends} appends");
}
