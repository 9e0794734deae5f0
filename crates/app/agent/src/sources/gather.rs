//! Asks a source until its list is complete, and says meanwhile who is missing.
//!
//! **Invariant:** no question takes longer than [`super::ANSWER_WITHIN`]; without `--expect` there is exactly one.

use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault, Result};
use quorate_plan::roster::{Answer, Gathering, Next, Roster, human};

use super::{ANSWER_WITHIN, Source, silent};

/// How patient we are with one answer, and how often we ask.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// A source that has not answered by then is unreachable.
    pub answer_within: Duration,
    /// Time between an answer and the next question.
    pub ask_every: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { answer_within: ANSWER_WITHIN, ask_every: Duration::from_secs(1) }
    }
}

/// Asks once, within the time limit.
pub async fn ask(source: &dyn Source, pace: Pace) -> Result<Answer> {
    match tokio::time::timeout(pace.answer_within, source.ask()).await {
        Ok(answer) => answer,
        Err(_) => {
            let why = format!("it did not answer within {}", human(pace.answer_within));
            Err(silent(source.provenance(), why)
                .hint("see that it is up and that this host may reach it, then try again"))
        }
    }
}

/// Gathers a list that passed [`Roster::check`]. With `expect`, asks until it is complete or `wait` has passed.
pub async fn gather(
    source: &dyn Source,
    expect: Option<usize>,
    wait: Duration,
    progress: &mut dyn FnMut(&str),
) -> Result<Roster> {
    gather_at(source, expect, wait, Pace::default(), progress).await
}

/// The same at another pace.
pub async fn gather_at(
    source: &dyn Source,
    expect: Option<usize>,
    wait: Duration,
    pace: Pace,
    progress: &mut dyn FnMut(&str),
) -> Result<Roster> {
    if expect == Some(0) {
        let fault = Fault::new(Code::Usage, "cannot expect `0` members");
        return Err(fault.hint("say how many members found the cluster, or leave `--expect` out"));
    }
    let start = Instant::now();
    let mut gathering = Gathering::new(source.provenance(), expect, source.settled());
    let mut said = String::new();
    loop {
        match gathering.take(ask(source, pace).await) {
            Next::Done(roster) => return Ok(roster),
            Next::Refuse(fault) => return Err(fault),
            Next::Wait(text) if text != said => {
                progress(&text);
                said = text;
            }
            Next::Wait(_) => {}
        }
        let left = wait.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(gathering.give_up(wait));
        }
        tokio::time::sleep(pace.ask_every.min(left)).await;
    }
}
