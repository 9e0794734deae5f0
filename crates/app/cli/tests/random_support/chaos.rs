//! What happens to followers, members and the store while the writers write.
//!
//! **Rule:** what is done, and in which order, follows from the seed. Whatever was broken is mended before the end, so that
//! the end can be judged.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_etcd::client::Client;
use quorate_testkit::{quorate, wait_until};
use tokio::runtime::Runtime;

use super::dice::Dice;
use super::follower::{End, Follower, Orders};
use super::members::Members;
use super::place::Place;
use super::truth::Truth;

/// Compactions that nobody can win against are this far apart, so that most of the history can be kept.
const RACE_EVERY_SECONDS: u64 = 30;

/// How often each thing happened.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    pub(crate) kills: u64,
    pub(crate) stops: u64,
    pub(crate) takeovers: u64,
    pub(crate) replaced: u64,
    pub(crate) gave_up: u64,
    pub(crate) members: u64,
    pub(crate) leaders: u64,
    pub(crate) weathers: u64,
    pub(crate) compactions: u64,
    pub(crate) races: u64,
    pub(crate) fulls_by_hand: u64,
}

/// The scene.
pub(crate) struct Chaos {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) client: Client,
    pub(crate) dice: Dice,
    pub(crate) members: Members,
    pub(crate) place: Place,
    pub(crate) orders: Orders,
    pub(crate) truth: Arc<Truth>,
    pub(crate) counts: Counts,
    /// The follower that is meant to work, and spools that were used.
    pub(crate) main: Option<Follower>,
    pub(crate) spools: usize,
    /// Followers that were overtaken.
    pub(crate) retired: Vec<Follower>,
    pub(crate) by_hand: Vec<Child>,
    pub(crate) began: Instant,
    pub(crate) storm_ends: Instant,
}

impl Chaos {
    /// Lets things happen for so long.
    pub(crate) fn rage(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            let pause = self.dice.between(50, 700);
            std::thread::sleep(Duration::from_millis(pause));
            match self.dice.weighted(&[20, 7, 9, 10, 8, 22, 16, 5]) {
                0 => self.kill_follower(),
                1 => self.stop_follower(),
                2 => self.take_over(),
                3 => self.restart_member(),
                4 => self.change_leader(),
                5 => self.change_weather(),
                6 => {
                    let back = self.dice.between(1200, 2500);
                    self.compact(back);
                }
                _ => self.full_by_hand(),
            }
            self.look_after();
        }
    }

    pub(crate) fn note(&self, what: &str) {
        eprintln!("[{:6.2}] at {}: {what}", self.began.elapsed().as_secs_f64(), self.truth.seen());
    }

    fn change_weather(&mut self) {
        let weather = self.place.change(&mut self.dice);
        self.note(&format!("store: {weather}"));
        self.storm_ends = Instant::now() + Duration::from_millis(self.dice.between(500, 4000));
        self.counts.weathers += 1;
    }

    fn kill_follower(&mut self) {
        let Some(main) = self.main.take() else { return };
        let mut spool = main.spool;
        let recorded = main.metric("quorate_backup_recorded_revision").unwrap_or(0.0);
        let keeps_up = recorded + 150.0 > self.truth.seen() as f64;
        self.note(&format!("follower {spool}: kill"));
        main.kill();
        self.counts.kills += 1;
        let away = self.dice.weighted(&[50, 25, 25]);
        if away > 0 {
            let pause = self.dice.between(100, 1200);
            std::thread::sleep(Duration::from_millis(pause));
        }
        let may_race = self.counts.races * RACE_EVERY_SECONDS <= self.began.elapsed().as_secs();
        if away == 2 && keeps_up && may_race {
            return self.lose_a_race(spool);
        }
        // Sometimes a follower of long ago comes back, with an old spool.
        if self.spools > 1 && self.dice.chance(15) {
            let other = self.dice.below(self.spools as u64) as usize;
            spool = if self.retired.iter().any(|retired| retired.spool == other) { spool } else { other };
        }
        self.main = Some(self.orders.start(spool));
    }

    /// While nobody follows, etcd forgets what it has. One disaster at a time: the hole is closed before the next one.
    fn lose_a_race(&mut self, spool: usize) {
        self.counts.races += 1;
        self.place.heal();
        self.compact(0);
        self.main = Some(self.orders.start(spool));
        let limit = Instant::now() + Duration::from_secs(10);
        let closed = |main: &Follower| main.said("following into") && !main.has_open_hole();
        while !self.main.as_ref().is_some_and(closed) && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(50));
            self.look_after();
        }
    }

    fn stop_follower(&mut self) {
        // One that has just begun does not listen to signals yet.
        let Some(main) = self.main.take_if(|main| main.said("following into")) else { return };
        let spool = main.spool;
        let end = main.stop();
        self.note(&format!("follower {spool}: stop, {:?}", end.exit));
        self.counts.stops += 1;
        assert!(end.exit == Some(0) || self.may_end(&end), "a follower that was stopped: {end:?}");
        self.main = Some(self.orders.start(spool));
    }

    /// A second follower begins while the first one works.
    fn take_over(&mut self) {
        if !self.retired.is_empty() {
            return;
        }
        let spool = self.spools;
        self.spools += 1;
        self.note(&format!("follower {spool}: takes over"));
        let next = self.orders.start(spool);
        self.counts.takeovers += 1;
        self.retired.extend(self.main.replace(next));
    }

    fn restart_member(&mut self) {
        let (first, in_order) = (self.dice.below(3) as usize, self.dice.chance(50));
        let both = self.dice.chance(15);
        let down: Vec<usize> = if both { vec![first, (first + 1) % 3] } else { vec![first] };
        self.note(&format!("members {down:?}: end, in order: {in_order}"));
        for index in &down {
            self.members.end(*index, in_order);
            self.counts.members += 1;
        }
        let pause = self.dice.between(0, 900);
        std::thread::sleep(Duration::from_millis(pause));
        down.into_iter().for_each(|index| self.members.spawn(index));
    }

    fn change_leader(&mut self) {
        let runtime = Arc::clone(&self.runtime);
        let client = self.client.with_timeout(Duration::from_millis(500));
        if self.dice.chance(60) {
            let moved = runtime.block_on(self.members.move_leader(&client, &mut self.dice));
            self.note(&format!("leader: moved: {moved}"));
            self.counts.leaders += u64::from(moved);
            return;
        }
        let Some(leader) = runtime.block_on(self.members.leader(&client)) else { return };
        self.note(&format!("leader {leader}: kill"));
        self.members.end(leader, false);
        self.counts.leaders += 1;
        let pause = self.dice.between(0, 1500);
        std::thread::sleep(Duration::from_millis(pause));
        self.members.spawn(leader);
    }

    /// Lets etcd forget all but the last revisions that the truth has seen.
    fn compact(&mut self, back: u64) {
        let revision = self.truth.seen().saturating_sub(back);
        let client = self.client.with_timeout(Duration::from_secs(2));
        if revision > 1 && self.runtime.block_on(client.compact(revision as i64)).is_ok() {
            self.note(&format!("compacted {revision}"));
            self.counts.compactions += 1;
        }
    }

    fn full_by_hand(&mut self) {
        let mut command = Command::new(quorate());
        command.args(["backup", "now", "--store", &self.orders.store, "--endpoints", &self.orders.endpoints]);
        command.envs(self.orders.env.clone()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.note("a full by hand");
        self.by_hand.push(command.spawn().unwrap());
        self.counts.fulls_by_hand += 1;
    }

    /// A service manager: starts what gave up, and sees that nothing ends in another way than it may. No storm is for ever.
    fn look_after(&mut self) {
        if Instant::now() > self.storm_ends {
            self.place.heal();
        }
        if let Some(end) = self.main.as_mut().and_then(Follower::ended) {
            let spool = self.main.take().map_or(0, |main| main.spool);
            self.note(&format!("follower {spool}: gave up: {end:?}"));
            assert!(self.may_end(&end), "a follower ended by itself: {end:?}");
            self.counts.gave_up += 1;
            self.main = Some(self.orders.start(spool));
        }
        let mut still = Vec::new();
        for mut retired in std::mem::take(&mut self.retired) {
            match retired.ended() {
                None => still.push(retired),
                Some(end) => {
                    self.note(&format!("follower {}: replaced: {:?}", retired.spool, end.exit));
                    assert!(self.may_end(&end), "a follower that was overtaken: {end:?}");
                    self.counts.replaced += u64::from(end.words.contains("Q0850"));
                }
            }
        }
        self.retired = still;
    }

    /// Ends that a follower may come to: another one took over, or what it needs cannot be reached. A retired one may also
    /// see the one that overtook it die and be overtaken by itself again.
    fn may_end(&self, end: &End) -> bool {
        let replaced = end.exit == Some(5) && end.words.contains("Q0850");
        let unreachable = end.exit == Some(6) && (end.words.contains("Q0802") || end.words.contains("Q0601"));
        replaced || unreachable
    }

    /// Mends everything, and waits until what was overtaken has noticed.
    pub(crate) fn heal(&mut self) {
        self.place.heal();
        self.members.heal();
        self.look_after();
        self.note("healed");
        if self.main.is_none() {
            self.main = Some(self.orders.start(0));
        }
        let patience = Instant::now() + Duration::from_secs(3);
        while !self.retired.is_empty() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(100));
            self.look_after();
        }
        for retired in std::mem::take(&mut self.retired) {
            // It had nothing to upload, or waits for its next attempt: told to end, it notices or ends in order.
            let end = retired.stop();
            assert!(end.exit == Some(0) || self.may_end(&end), "a follower that was overtaken: {end:?}");
        }
        for mut child in std::mem::take(&mut self.by_hand) {
            child.wait().unwrap();
        }
    }

    /// Waits until everything up to a revision is recorded, and ends the follower in order. What it could not upload before
    /// its end, because it had not yet noticed that the store is back, the next one does.
    pub(crate) fn finish(&mut self, last: u64) {
        for _ in 0..3 {
            self.wait_recorded(last);
            self.note("all is recorded");
            let main = self.main.take().unwrap();
            let (spool, words) = (main.spool, main.running.log_tail(30));
            let end = main.stop();
            assert_eq!(end.exit, Some(0), "the last follower: {end:?}\n{words}");
            if end.words.contains("everything recorded is in the store") {
                return;
            }
            assert!(end.words.contains("Q0857"), "what is left is said: {end:?}\n{words}");
            self.note("not all is stored");
            self.main = Some(self.orders.start(spool));
        }
        panic!("the store is well, and what was recorded does not come into it");
    }

    fn wait_recorded(&mut self, last: u64) {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            self.look_after();
            let recorded = self.main.as_ref().and_then(|main| main.metric("quorate_backup_recorded_revision"));
            let open = self.main.as_ref().is_some_and(Follower::has_open_hole);
            if recorded.is_some_and(|recorded| recorded >= last as f64) && !open {
                return;
            }
            assert!(Instant::now() < limit, "{recorded:?} of {last} is recorded, open hole: {open}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The first full is there.
    pub(crate) fn first_full(&self) -> u64 {
        let mut full = None;
        wait_until("the first full", Duration::from_secs(40), || {
            let log = self.main.as_ref().map(|main| main.running.log()).unwrap_or_default();
            full = log
                .lines()
                .filter(|line| line.contains("stored a full"))
                .find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()?["revision"].as_u64());
            full.is_some()
        });
        full.unwrap_or(0)
    }
}
