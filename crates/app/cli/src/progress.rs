//! A progress display that stays out of the way.
//!
//! **Rule:** nothing shows within the first second, nothing shows off a terminal, and nothing is left behind.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work shorter than this needs no display.
const PATIENCE: Duration = Duration::from_secs(1);

const BAR: &str = "{msg} {wide_bar:.cyan/dim} {percent:>3}%  {eta} left";
const BYTES: &str = "{msg} {wide_bar:.cyan/dim} {percent:>3}%  {binary_bytes_per_sec}  {eta} left";
const SPINNER: &str = "{spinner:.cyan} {msg}";

fn style(template: &str) -> ProgressStyle {
    // The templates are constants, checked by the test below.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("━╸─")
}

/// The display of one piece of work. Dropping it clears it.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When to start showing; `None` once shown, or never to be shown.
    reveal_at: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(what: &str, total: Option<u64>, shown: bool) -> Progress {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        bar.set_style(style(if total.is_some() { BAR } else { SPINNER }));
        bar.set_message(what.to_owned());
        Progress { bar, reveal_at: shown.then(|| Instant::now() + PATIENCE) }
    }

    /// The total is in bytes, so the rate is worth showing.
    pub(crate) fn in_bytes(self) -> Progress {
        self.bar.set_style(style(BYTES));
        self
    }

    /// How much is done, in the unit of the total.
    pub(crate) fn set(&mut self, done: u64) {
        self.bar.set_position(done);
        self.tick();
    }

    /// What is being done or waited for now.
    pub(crate) fn say(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.tick();
    }

    /// Keeps the display alive; call it in waiting loops.
    pub(crate) fn tick(&mut self) {
        if self.reveal_at.is_some_and(|at| Instant::now() >= at) {
            self.reveal_at = None;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_display_is_hidden_until_work_has_taken_a_while() {
        let mut progress = Progress::new("reading", Some(10), true);
        progress.set(3);
        assert!(progress.bar.is_hidden());
        assert!(progress.reveal_at.is_some());
    }

    #[test]
    fn templates_are_valid() {
        for template in [BAR, BYTES, SPINNER] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }
}
