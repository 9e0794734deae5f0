//! The ladder of a stop: what to send next, and when.
//!
//! **Invariant:** time is passed in; a later order never makes a stop slower.

use std::time::{Duration, Instant};

use super::control::StopOrder;
use super::spec::{Rung, Send};

/// A stop under way.
#[derive(Debug)]
pub(super) struct Stopping {
    pub(super) order: StopOrder,
    rest: std::collections::VecDeque<Rung>,
    /// What was sent last.
    pub(super) sent: Option<Send>,
    due: Instant,
}

impl Stopping {
    pub(super) fn new(order: StopOrder, now: Instant) -> Stopping {
        let rest = order.ladder.iter().copied().collect();
        Stopping { order, rest, sent: None, due: now }
    }

    /// Someone asks again: what was sent is not sent again, and what remains comes no later than either order says.
    pub(super) fn hurry(&mut self, order: &StopOrder, now: Instant) {
        let rung = order.ladder.iter().find(|rung| Some(rung.send) == self.sent);
        if let Some(rung) = rung {
            self.due = self.due.min(now + Duration::from_millis(rung.wait_ms));
        } else {
            self.due = now;
        }
        let later = order.ladder.iter().filter(|rung| self.sent.is_none_or(|sent| rank(rung.send) > rank(sent)));
        self.rest = later.copied().collect();
        self.order.last_revision = self.order.last_revision.max(order.last_revision);
    }

    /// What to send now, if it is time.
    pub(super) fn next(&mut self, now: Instant) -> Option<Send> {
        if now < self.due {
            return None;
        }
        let rung = self.rest.pop_front()?;
        self.due = now + Duration::from_millis(rung.wait_ms);
        self.sent = Some(rung.send);
        Some(rung.send)
    }

    /// How long nothing is to be done; `None`: nothing is left to do.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        (!self.rest.is_empty()).then(|| self.due.saturating_duration_since(now))
    }
}

fn rank(send: Send) -> u8 {
    match send {
        Send::Term => 0,
        Send::Int => 1,
        Send::Quit => 2,
        Send::Kill => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(waits: [u64; 3]) -> StopOrder {
        let sends = [Send::Term, Send::Quit, Send::Kill];
        let ladder = sends.into_iter().zip(waits).map(|(send, wait_ms)| Rung { send, wait_ms }).collect();
        StopOrder { asked_by: "me".to_owned(), ladder, last_revision: None }
    }

    #[test]
    fn each_step_comes_when_the_one_before_has_had_its_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut stop = Stopping::new(order([100, 50, 10]), start);
        assert_eq!(stop.next(at(0)), Some(Send::Term));
        assert_eq!((stop.next(at(99)), stop.wait(at(90))), (None, Some(Duration::from_millis(10))));
        assert_eq!(stop.next(at(100)), Some(Send::Quit));
        assert_eq!((stop.next(at(149)), stop.next(at(150))), (None, Some(Send::Kill)));
        assert_eq!((stop.next(at(9999)), stop.wait(at(9999))), (None, None));
    }

    #[test]
    fn a_second_order_shortens_and_never_repeats() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut stop = Stopping::new(order([1000, 50, 10]), start);
        assert_eq!(stop.next(at(0)), Some(Send::Term));
        stop.hurry(&order([5000, 50, 10]), at(10));
        assert_eq!(stop.wait(at(10)), Some(Duration::from_millis(990)));
        stop.hurry(&order([100, 50, 10]), at(20));
        assert_eq!(stop.next(at(119)), None);
        assert_eq!(stop.next(at(120)), Some(Send::Quit));
        let kill = StopOrder { ladder: vec![Rung { send: Send::Kill, wait_ms: 1 }], ..order([0; 3]) };
        stop.hurry(&kill, at(121));
        assert_eq!(stop.next(at(121)), Some(Send::Kill));
    }
}
