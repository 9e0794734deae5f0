//! Reads the source tree: every text file that is not ignored by the `.gitignore` at the top.

use std::path::Path;

use anyhow::{Context, Result};

/// A text file of the checkout.
#[derive(Debug)]
pub(super) struct SourceFile {
    /// Relative to the top, with forward slashes.
    pub(super) path: String,
    pub(super) text: String,
}

impl SourceFile {
    pub(super) fn has_extension(&self, extension: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|found| found == extension)
    }

    /// The lines with their numbers, as editors count them.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }
}

/// Every text file below `root`, sorted by path.
pub(super) fn read(root: &Path) -> Result<Vec<SourceFile>> {
    let ignore = std::fs::read_to_string(root.join(".gitignore")).context("cannot read `.gitignore`")?;
    let mut ignored: Vec<&str> = ignore.lines().filter_map(|line| line.strip_prefix('/')).collect();
    ignored.push(".git");
    let mut files = Vec::new();
    walk(root, "", &ignored, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn walk(root: &Path, below: &str, ignored: &[&str], files: &mut Vec<SourceFile>) -> Result<()> {
    let dir = root.join(below);
    let entries = std::fs::read_dir(&dir).with_context(|| format!("cannot read `{}`", dir.display()))?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        let kind = entry.file_type()?;
        if ignored.iter().any(|rule| rule.trim_end_matches('/') == path) {
            continue;
        }
        if kind.is_dir() {
            walk(root, &path, ignored, files)?;
        } else if kind.is_file()
            && let Ok(text) = String::from_utf8(std::fs::read(entry.path())?)
        {
            files.push(SourceFile { path, text });
        }
    }
    Ok(())
}
