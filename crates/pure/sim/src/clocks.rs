//! Clocks: each machine has its own, which is wrong from the beginning, runs too fast or too slow, and is set now and then.
//!
//! **Rule:** no agent is told the true time, and nobody ever sets all clocks right. Chance for clocks and upkeep has a stream of
//! its own: whatever clocks show, faults and operators come alike.

use crate::random::Random;
use crate::world::World;

/// What all clocks would show at the beginning if they were right: far enough from 0 for one that is set back.
const BEGAN_MS: i64 = 1_700_000_000_000;
/// How fast a clock runs at most, in parts of a million: quartz is better, a machine that is often halted is not.
const DRIFT_MAX_PPM: i64 = 20_000;
const SECOND_MS: i64 = 1000;
const HOUR_MS: i64 = 3600 * SECOND_MS;

/// The clock of a machine.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    /// How far it is ahead of one that is right, without its drift.
    ahead_ms: i64,
    drift_ppm: i64,
}

impl Clock {
    pub(crate) fn of_chance(chance: &mut Random) -> Clock {
        // Most clocks are nearly right.
        let far = [0, 0, SECOND_MS, SECOND_MS, 90 * SECOND_MS, HOUR_MS][chance.below(6)];
        let ahead_ms = if chance.permille(500) { far } else { -far };
        Clock { ahead_ms, drift_ppm: between(chance, DRIFT_MAX_PPM) }
    }
}

fn between(chance: &mut Random, most: i64) -> i64 {
    let span = usize::try_from(2 * most + 1).unwrap_or(1);
    i64::try_from(chance.below(span)).unwrap_or(0) - most
}

impl World {
    /// What the clock of a node shows, in ms since 1970.
    pub(crate) fn clock_ms(&self, node: usize) -> u64 {
        u64::try_from(BEGAN_MS + self.true_ms() + self.wrong_ms(node)).unwrap_or(0)
    }

    /// How far the clock of a node is ahead.
    fn wrong_ms(&self, node: usize) -> i64 {
        self.clocks.get(node).map_or(0, |clock| clock.ahead_ms + self.true_ms() * clock.drift_ppm / 1_000_000)
    }

    fn true_ms(&self) -> i64 {
        i64::try_from(self.now).unwrap_or(0) * SECOND_MS
    }

    /// Perhaps someone sets a clock: right, a little off, or by up to an hour.
    pub(crate) fn set_clocks(&mut self) {
        if self.calm || !self.chance.permille(15) {
            return;
        }
        let node = self.chance.below(self.clocks.len());
        let by = match self.chance.below(4) {
            0 => -self.wrong_ms(node),
            1 => between(&mut self.chance, 2 * SECOND_MS),
            2 => between(&mut self.chance, 120 * SECOND_MS),
            _ => between(&mut self.chance, HOUR_MS),
        };
        if let Some(clock) = self.clocks.get_mut(node) {
            clock.ahead_ms += by;
        }
        let wrong = self.wrong_ms(node) / SECOND_MS;
        self.tell(Some(node), format!("its clock is set by {} s, and is {wrong} s ahead", by / SECOND_MS));
    }
}
