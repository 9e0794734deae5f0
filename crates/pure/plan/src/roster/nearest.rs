//! Guesses what somebody meant to type.

/// The candidate nearest to what was typed, if it is near enough to be a slip.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain_typed = plain(typed);
    let limit = match plain_typed.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    };
    candidates
        .into_iter()
        .map(|candidate| (distance(&plain_typed, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Spelling without what people mix up: case, `_` and `-`. Cut, so that a hostile key costs little.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).take(64).collect()
}

/// Edits between two words (insert, delete, replace).
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, from) in left.chars().enumerate() {
        let mut diagonal = line;
        let mut before = line + 1;
        for (column, to) in right.iter().enumerate() {
            let above = row.get(column + 1).copied().unwrap_or(usize::MAX);
            let here = (diagonal + usize::from(from != *to)).min(before + 1).min(above + 1);
            if let Some(slot) = row.get_mut(column) {
                *slot = before;
            }
            diagonal = above;
            before = here;
        }
        if let Some(slot) = row.last_mut() {
            *slot = before;
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let keys = ["name", "peer_urls", "client_urls"];
        assert_eq!(nearest("peerUrl", keys), Some("peer_urls"));
        assert_eq!(nearest("nmae", keys), None);
        assert_eq!(nearest("nam", keys), Some("name"));
        assert_eq!(nearest("clients_url", keys), Some("client_urls"));
        assert_eq!(nearest("learner", keys), None);
        assert_eq!(nearest("n9", ["n1", "n2"]), None);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }
}
