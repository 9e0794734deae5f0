//! What etcdctl's words mean, as far as we must know: whether they change something, and what in them may be secret.
//!
//! **Rule:** what is not known to only read counts as a change.

/// Beginnings of commands that change nothing. `snapshot save` reads, but takes everything along.
const READS: [&[&str]; 16] = [
    &["get"],
    &["watch"],
    &["version"],
    &["help"],
    &["completion"],
    &["endpoint"],
    &["member", "list"],
    &["alarm", "list"],
    &["auth", "status"],
    &["user", "list"],
    &["user", "get"],
    &["role", "list"],
    &["role", "get"],
    &["lease", "list"],
    &["lease", "timetolive"],
    &["snapshot", "status"],
];

/// Flags of etcdctl itself that take the next word.
const WITH_VALUE: [&str; 13] = [
    "--endpoints",
    "--cacert",
    "--cert",
    "--key",
    "--user",
    "--password",
    "--write-out",
    "-w",
    "--command-timeout",
    "--dial-timeout",
    "--keepalive-time",
    "--keepalive-timeout",
    "--discovery-srv",
];

/// Whether a flag of this name is among the words.
pub(super) fn gives(words: &[String], flag: &str) -> bool {
    let before = words.iter().take_while(|word| *word != "--");
    let is_it = |word: &String| match word.strip_prefix("--") {
        Some(rest) => rest == flag || rest.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')),
        None => flag == "write-out" && word.starts_with("-w"),
    };
    before.into_iter().any(is_it)
}

/// The words without flags, with their places.
pub(super) fn plain(words: &[String]) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut skip = false;
    for (at, word) in words.iter().enumerate() {
        if std::mem::take(&mut skip) {
            continue;
        }
        match word.starts_with('-') && word.len() > 1 {
            true => skip = WITH_VALUE.contains(&word.as_str()),
            false => found.push((at, word.as_str())),
        }
    }
    found
}

/// Whether it may change something.
pub(super) fn changes(words: &[String]) -> bool {
    let plain: Vec<&str> = plain(words).into_iter().map(|(_, word)| word).collect();
    // Nothing but flags: a version or a help text.
    !plain.is_empty() && !READS.iter().any(|read| plain.starts_with(read))
}

/// Whether it only reads, but more than the one key that it names: a prefix, a range, everything.
pub(super) fn reads_many(words: &[String]) -> bool {
    let plain: Vec<&str> = plain(words).into_iter().map(|(_, word)| word).collect();
    let ["get" | "watch", keys @ ..] = plain.as_slice() else { return false };
    gives(words, "prefix") || gives(words, "from-key") || keys.len() > 1 || keys == [""]
}

/// The same words with values and passwords left out.
pub(super) fn hide_values(words: &[String]) -> Vec<String> {
    let mut shown = words.to_vec();
    let plain = plain(words);
    let verbs: Vec<&str> = plain.iter().map(|(_, word)| *word).collect();
    // `put KEY VALUE`, `txn` and `user add NAME:PASSWORD` carry what is nobody's business.
    let from = match verbs.as_slice() {
        ["put", ..] => 2,
        ["user", ..] => usize::MAX,
        ["elect" | "lock", ..] => 2,
        _ => usize::MAX,
    };
    for (position, (at, word)) in plain.iter().enumerate() {
        let hidden = match (position >= from, verbs.first()) {
            (true, _) => "***".to_owned(),
            (false, Some(&"user")) => without_password(word),
            (false, _) => continue,
        };
        if let Some(place) = shown.get_mut(*at) {
            *place = hidden;
        }
    }
    let mut is_user = false;
    for word in &mut shown {
        let inline = word.starts_with("--user=");
        if inline || std::mem::take(&mut is_user) {
            *word = without_password(word);
        }
        is_user = word == "--user";
    }
    shown
}

fn without_password(word: &str) -> String {
    match word.split_once(':') {
        Some((name, _)) => format!("{name}:***"),
        None => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_only_reads_is_known_and_all_else_changes() {
        for read in ["get k", "--endpoints a member list", "endpoint status -w table", "-w json user get x", "--help"] {
            assert!(!changes(&words(read)), "{read}");
        }
        for change in ["put k v", "member remove 1", "del k", "snapshot save f", "alarm disarm", "check perf", "new"] {
            assert!(changes(&words(change)), "{change}");
        }
    }

    #[test]
    fn whoever_reads_more_than_a_key_is_known() {
        for many in ["get k --prefix", "get --from-key=true k", "watch --prefix k", "get a b", "get ", "--cert a get "]
        {
            assert!(reads_many(&words(many)), "{many}");
        }
        for one in ["get k", "watch k", "get k -w json", "member list", "put a b"] {
            assert!(!reads_many(&words(one)), "{one}");
        }
    }

    #[test]
    fn flags_are_found_as_they_are_written() {
        assert!(gives(&words("member list --endpoints=a"), "endpoints"));
        assert!(gives(&words("--cert a get k"), "cert"));
        assert!(!gives(&words("--cert a get k"), "cacert"));
        assert!(!gives(&words("get -- --cert"), "cert"));
        assert!(gives(&words("get k -w json"), "write-out"));
        assert!(gives(&words("get k -wjson"), "write-out"));
    }

    #[test]
    fn values_and_passwords_are_left_out() {
        let hidden = |line: &str| hide_values(&words(line)).join(" ");
        assert_eq!(hidden("put --lease=1 key value"), "put --lease=1 key ***");
        assert_eq!(hidden("user add bob:pw"), "user add bob:***");
        assert_eq!(hidden("--user root:pw del k"), "--user root:*** del k");
        assert_eq!(hidden("del k --user=root:pw"), "del k --user=root:***");
        assert_eq!(hidden("member add n2 --peer-urls=http://a:1"), "member add n2 --peer-urls=http://a:1");
    }
}
