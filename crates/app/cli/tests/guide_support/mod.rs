//! Files and commands as documents print them.
//!
//! **Rule:** what a test runs stands in the document: a line that is not printed there fails the test.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses its part; one that cannot continue names the place"
)]

use quorate_testkit::project_root;

/// A document.
pub(crate) struct Guide {
    path: String,
    text: String,
}

impl Guide {
    /// One below the project's root.
    #[track_caller]
    pub(crate) fn read(path: &str) -> Guide {
        let text = std::fs::read_to_string(project_root().join(path)).unwrap();
        Guide { path: path.to_owned(), text }
    }

    /// The first block that opens with these words, without its fences.
    #[track_caller]
    pub(crate) fn block(&self, opens: &str) -> String {
        let found = self.text.split_once(opens);
        let (_, after) = found.unwrap_or_else(|| panic!("no block of `{}` opens with {opens:?}", self.path));
        let (inside, _) = after.split_once("\n```").unwrap();
        format!("{}{inside}\n", opens.split_once('\n').map_or("", |(_, first)| first))
    }

    /// The commands of all blocks, without prompts and comments.
    fn commands(&self) -> Vec<String> {
        let mut inside = false;
        let mut found = Vec::new();
        for line in self.text.lines() {
            match line.strip_prefix("```") {
                Some(_) => inside = !inside,
                None if inside => found.extend(command(line)),
                None => {}
            }
        }
        found
    }

    /// The printed command that is this, or the first one that begins so.
    #[track_caller]
    pub(crate) fn line(&self, begins: &str) -> String {
        let all = self.commands();
        let found =
            all.iter().find(|line| *line == begins).or_else(|| all.iter().find(|line| line.starts_with(begins)));
        found.cloned().unwrap_or_else(|| panic!("no line of `{}` begins with `{begins}`", self.path))
    }

    /// The first command within a sentence that begins so.
    #[track_caller]
    pub(crate) fn inline(&self, begins: &str) -> String {
        let found = self.text.split('`').find(|part| part.starts_with(begins));
        found.unwrap_or_else(|| panic!("no sentence of `{}` has `{begins}`", self.path)).to_owned()
    }
}

/// The commands of a block.
pub(crate) fn commands(block: &str) -> Vec<String> {
    block.lines().filter_map(command).collect()
}

/// A line without its prompt (`$ `, `n1$ `) and its comment.
fn command(line: &str) -> Option<String> {
    let is_prompt = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
    let line = line.split_once("$ ").filter(|(prompt, _)| is_prompt(prompt)).map_or(line, |(_, line)| line);
    let line = line.split(" #").next().unwrap_or_default().trim();
    (!line.is_empty()).then(|| line.to_owned())
}
