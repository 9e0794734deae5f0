//! Every list that is accepted, and the exact words of every refusal.

use std::time::Duration;

use quorate_faults::{Code, Fault};

use super::*;

/// One line per member: `name=url,url`, then `|client,client` if it has any.
fn shown(roster: &Roster) -> String {
    let line = |member: &RosterMember| {
        let clients =
            if member.client_urls.is_empty() { String::new() } else { "|".to_owned() + &member.client_urls.join(",") };
        format!("{}={}{clients}", member.name, member.peer_urls.join(","))
    };
    roster.members.iter().map(line).collect::<Vec<_>>().join(" ")
}

fn flags(flags: &[&str]) -> Result<Roster> {
    let roster = parse_member_flags(flags)?;
    roster.check()?;
    Ok(roster)
}

fn list(text: &str) -> Result<Roster> {
    let roster = parse_list(text.as_bytes(), "file:m.yaml")?;
    roster.check()?;
    Ok(roster)
}

fn initial(text: &str) -> Result<Roster> {
    let roster = parse_initial_cluster(text, "static:")?;
    roster.check()?;
    Ok(roster)
}

/// Code, sentence and way out, as an operator reads them.
fn words(fault: &Fault) -> String {
    format!("{} {fault} -> {}", fault.code(), fault.hint_text().unwrap_or_default())
}

fn refused(result: Result<Roster>, expected: &str) {
    let got = match &result {
        Ok(roster) => format!("accepted: {}", shown(roster)),
        Err(fault) => words(fault),
    };
    assert_eq!(got, expected);
}

#[test]
fn member_flags_give_members_in_their_order_with_sorted_urls() {
    let roster = flags(&["n2=http://b:2380,http://a:2380", "n1=HTTP://C:2380"]).unwrap();
    assert_eq!(shown(&roster), "n2=http://a:2380,http://b:2380 n1=http://C:2380");
}

#[test]
fn member_flags_are_refused_with_their_reason() {
    refused(flags(&["n1"]), "Q0003 cannot read `--member` `n1`: it has no `=` -> write `--member NAME=URL[,URL]`");
    refused(
        flags(&["n1=http://a:1", "n2=http://b:1", "n1=http://c:1"]),
        "Q0105 two members are named `n1`, in the list from `--member` -> \
         give each member its own name; write several URLs of one member as `NAME=URL,URL`",
    );
    refused(
        flags(&["n1=http://a:1,n2=http://b:1"]),
        "Q0109 cannot use peer URL `n2=http://b:1` of member `n1`: it begins with another name, in the list from \
         `--member` -> give each name its own `--member`, and separate the URLs of one member with `,`",
    );
    refused(
        flags(&["n1="]),
        "Q0109 cannot use peer URL `` of member `n1`: it is empty, in the list from `--member` -> \
         write it as `https://HOST:2380`",
    );
    refused(
        flags(&["n1=https://root:secret@a:1"]),
        "Q0109 cannot use peer URL `https://…@a:1` of member `n1`: it contains a user name or password, in the list from \
         `--member` -> remove what stands before `@`: peers prove who they are with certificates",
    );
}

#[test]
fn bad_names_are_refused_with_their_reason() {
    let way_out = "use a name without `=`, `,`, control characters and outer spaces, such as the host's name";
    let case = |name: &str, shown: &str, why: &str| {
        let roster = Roster::build("s", vec![RawMember::new(name, vec!["http://a:1".to_owned()])]).unwrap();
        let fault = roster.check().unwrap_err();
        assert_eq!(
            words(&fault),
            format!("Q0115 cannot use member name {shown}: {why}, in the list from `s` -> {way_out}")
        );
    };
    case("", "``", "it is empty");
    case(" n1", "` n1`", "it begins or ends with a space");
    case("n=1", "`n=1`", "it contains `=`");
    case("n,1", "`n,1`", "it contains `,`");
    case("n\u{1}", "`n\\u{1}`", "it contains `\\u{1}`");
    case(&"n".repeat(254), &format!("`{}…`", "n".repeat(160)), "it is longer than 253 bytes");
}

#[test]
fn initial_cluster_is_read_as_etcd_reads_it() {
    let roster = initial("n1=http://b:2380,n2=http://c:2380,,n1=http://a:2380,").unwrap();
    assert_eq!(shown(&roster), "n1=http://a:2380,http://b:2380 n2=http://c:2380");
    assert_eq!(shown(&initial("n1= http://a:2380 ").unwrap()), "n1=http://a:2380");
}

#[test]
fn initial_cluster_is_refused_with_its_reason() {
    refused(
        initial("n1=http://a:1,n2"),
        "Q0103 cannot read `n2` as `NAME=URL`, in the list from `static:` -> \
         write `n1=https://10.0.0.1:2380,n2=https://10.0.0.2:2380`; a repeated name adds a URL",
    );
    refused(
        initial(" "),
        "Q0104 the list from `static:` has no members -> list every founding member, or say `--expect N` to wait for them",
    );
    refused(
        initial("n1=http://a:1, n2=http://b:1"),
        "Q0115 cannot use member name ` n2`: it begins or ends with a space, in the list from `static:` -> \
         use a name without `=`, `,`, control characters and outer spaces, such as the host's name",
    );
    refused(
        initial("n1=http://a:1,n1=http://a:1"),
        "Q0106 member `n1` lists peer URL `http://a:1` twice, in the list from `static:` -> \
         every peer URL belongs to one member and is listed once",
    );
}

#[test]
fn shared_urls_are_refused_even_when_spelled_differently() {
    let way_out = "every peer URL belongs to one member and is listed once";
    let case = |flag: &[&str], what: &str| {
        refused(flags(flag), &format!("Q0106 {what}, in the list from `--member` -> {way_out}"));
    };
    case(&["n1=http://a:1", "n2=http://a:1"], "members `n1` and `n2` share peer URL `http://a:1`");
    case(
        &["n1=http://a:1", "n2=https://A:1"],
        "peer URLs `http://a:1` of member `n1` and `https://A:1` of member `n2` are the same place",
    );
    case(
        &["n1=http://[::1]:1,http://[0::1]:1"],
        "peer URLs `http://[0::1]:1` and `http://[::1]:1` of member `n1` are the same place",
    );
}

#[test]
fn every_spelling_of_a_list_gives_the_same_members() {
    let expected = "n1=https://10.0.0.1:2380 n2=https://10.0.0.2:2380,https://n2:2380";
    for text in [
        "- name: n1\n  peer_urls: [https://10.0.0.1:2380]\n- name: n2\n  peer_urls:\n  - https://n2:2380\n  - https://10.0.0.2:2380\n",
        "- {name: n1, peer_url: 'https://10.0.0.1:2380'}\n- {name: n2, peerURLs: ['https://n2:2380', 'https://10.0.0.2:2380']}\n",
        "members:\n- name: n1\n  peer_url: https://10.0.0.1:2380\n- name: n2\n  peer_url: https://n2:2380, https://10.0.0.2:2380\n",
        "n1: https://10.0.0.1:2380\nn2: [https://n2:2380, https://10.0.0.2:2380]\n",
        "members:\n  n1: https://10.0.0.1:2380\n  n2: {peer_urls: [https://n2:2380, https://10.0.0.2:2380]}\n",
        r#"[{"name":"n1","peerURLs":["https://10.0.0.1:2380"]},{"name":"n2","peer_urls":["https://n2:2380","https://10.0.0.2:2380"]}]"#,
        "\t{\"members\":\n\t[{\"name\":\"n1\",\"peer_url\":\"https://10.0.0.1:2380\"},\n\t{\"name\":\"n2\",\"peer_url\":\"https://n2:2380,https://10.0.0.2:2380\"}]}",
        "\u{feff}{\"n1\":\"https://10.0.0.1:2380\",\"n2\":[\"https://n2:2380\",\"https://10.0.0.2:2380\"]}",
    ] {
        assert_eq!(shown(&list(text).unwrap_or_else(|fault| panic!("{text}: {fault}"))), expected, "{text}");
    }
}

#[test]
fn client_urls_are_kept() {
    let roster =
        list("- name: n1\n  peer_url: http://a:2380\n  client_urls: [http://b:2379, http://a:2379]\n").unwrap();
    assert_eq!(shown(&roster), "n1=http://a:2380|http://a:2379,http://b:2379");
    refused(
        list("- {name: n1, peer_url: 'http://a:2380', client_url: 'http://a'}"),
        "Q0109 cannot use client URL `http://a` of member `n1`: it has no port, in the list from `file:m.yaml` -> \
         write `http://a:2380`",
    );
}

#[test]
fn lists_without_members_are_empty_not_unknown() {
    for text in ["", "  \n", "[]", "{}", "members: []", "members:", "null", "# nobody yet\n"] {
        refused(
            list(text),
            "Q0104 the list from `file:m.yaml` has no members -> \
             list every founding member, or say `--expect N` to wait for them",
        );
    }
}

#[test]
fn what_is_not_a_list_is_refused_with_its_place() {
    let shape =
        "write a list of `{name: n1, peer_urls: [https://10.0.0.1:2380]}`, or a map of `n1: https://10.0.0.1:2380`";
    for (text, why, way_out) in [
        ("hello", "it is text, not a list or a map", shape),
        ("12", "it is a number, not a list or a map", shape),
        ("- n1", "member number 1 is text, not a map with `name` and `peer_urls`", shape),
        (
            "- {name: n1, peer_url: 'http://a:1'}\n- 7",
            "member number 2 is a number, not a map with `name` and `peer_urls`",
            shape,
        ),
        ("- {peer_url: 'http://a:1'}", "member number 1 has no `name`", shape),
        ("- {name: n1}", "member `n1` has no `peer_urls`", shape),
        ("- {}", "member number 1 has no `peer_urls`", shape),
        (
            "- {name: 1, peer_url: 'http://a:1'}",
            "`name` of member number 1 is a number, not text",
            "put it in quotes: `\"…\"`",
        ),
        (
            "- {name: yes, peer_url: 'http://a:1'}",
            "`name` of member number 1 is true or false, not text",
            "put it in quotes: `\"…\"`",
        ),
        ("- {name: [n1], peer_url: 'http://a:1'}", "`name` of member number 1 is a list, not text", shape),
        (
            "- {name: n1, peer_urls: 5}",
            "`peer_urls` of member number 1 is a number, not a URL or a list of URLs",
            shape,
        ),
        ("- {name: n1, peer_urls: [5]}", "`peer_urls` of member number 1 holds a number, not a URL", shape),
        ("n1: {client_url: 'http://a:1'}", "member `n1` has no `peer_urls`", shape),
        ("n1: {name: n2, peer_url: 'http://a:1'}", "member `n1` says that its name is `n2`", shape),
        (
            "name: n1\npeer_url: http://a:1",
            "it is one member, not a list of members",
            "put `- ` before it, or `[` and `]` around it",
        ),
        (
            "- {name: n1, peer_uris: 'http://a:1'}",
            "member number 1 has a key `peer_uris` that means nothing here",
            "did you mean `peer_urls`?",
        ),
        (
            "- {name: n1, peerUrl: 'http://a:1'}",
            "member number 1 has a key `peerUrl` that means nothing here",
            "did you mean `peer_url`?",
        ),
        (
            "- {name: n1, weight: 3}",
            "member number 1 has a key `weight` that means nothing here",
            "a member has `name`, `peer_urls` and, if you like, `client_urls`",
        ),
        ("- {name: n1, name: n2, peer_url: 'http://a:1'}", "member number 1 has `name` twice", shape),
        ("- {name: n1, peer_url: 'http://a:1', peer_url: 'http://b:1'}", "member number 1 has `peer_url` twice", shape),
        (
            "- {name: n1, peer_url: 'http://a:1', peer_urls: []}",
            "member number 1 has both `peer_url` and `peer_urls`",
            shape,
        ),
        ("members: []\ntoken: x", "key `token` stands beside `members`", shape),
        ("{\"members\":[],\"members\":[]}", "key `members` appears twice", shape),
        ("[{\"name\": \"n1\",", "it is neither YAML nor JSON", shape),
        ("a: [b", "it is neither YAML nor JSON", shape),
    ] {
        refused(list(text), &format!("Q0103 cannot read the list from `file:m.yaml`: {why} -> {way_out}"));
    }
    let latin = parse_list(b"- name: n\xf6", "f").unwrap_err();
    assert_eq!(words(&latin), format!("Q0103 cannot read the list from `f`: byte 9 is not UTF-8 text -> {shape}"));
}

#[test]
fn broken_documents_name_line_and_column_once() {
    let fault = parse_list(b"- name: n1\n  peer_urls: [http://a:1\n- b", "f").unwrap_err();
    let cause = std::error::Error::source(&fault).unwrap().to_string();
    assert!(cause.contains("line 2, column 14"), "{cause}");
    assert!(!cause.contains('\n'), "{cause}");
}

#[test]
fn repeated_names_in_a_map_are_duplicates() {
    refused(
        list("n1: http://a:1\nn1: http://b:1\n"),
        "Q0105 two members are named `n1`, in the list from `file:m.yaml` -> \
         give each member its own name; write several URLs of one member as `NAME=URL,URL`",
    );
    refused(
        list(r#"{"n1":"http://a:1","n1":"http://b:1"}"#),
        "Q0105 two members are named `n1`, in the list from `file:m.yaml` -> \
         give each member its own name; write several URLs of one member as `NAME=URL,URL`",
    );
}

#[test]
fn one_members_value_is_a_url_or_an_object() {
    for (value, urls) in [
        ("http://a:1", "http://a:1"),
        (" http://a:1,http://b:1\n", "http://a:1 http://b:1"),
        (r#"["http://a:1","http://b:1"]"#, "http://a:1 http://b:1"),
        (r#"{"peer_urls":["http://a:1"],"client_urls":["http://a:2"]}"#, "http://a:1"),
        (r#"{"name":"n1","peer_url":"http://a:1"}"#, "http://a:1"),
    ] {
        assert_eq!(parse_member_value("n1", value.as_bytes(), "e").unwrap().peer_urls.join(" "), urls, "{value}");
    }
    let other = parse_member_value("n1", br#"{"name":"n2","peer_url":"http://a:1"}"#, "e").unwrap_err();
    assert_eq!(other.to_string(), "cannot read the list from `e`: member `n1` says that its name is `n2`");
    let broken = parse_member_value("n1", b"{\"a\"", "e").unwrap_err();
    assert_eq!(broken.to_string(), "cannot read the list from `e`: member `n1` is neither a URL nor JSON");
}

#[test]
fn the_local_member_is_found_by_name_or_by_being_alone() {
    let three = flags(&["n1=http://a:1", "n2=http://b:1", "node3=http://c:1"]).unwrap();
    assert_eq!(three.local(Some("n2")).unwrap().peer_urls, ["http://b:1"]);
    assert_eq!(
        words(&three.local(None).unwrap_err()),
        "Q0108 cannot tell which of `n1`, `n2` and `node3` is this node, in the list from `--member` -> \
         say which one with `--name NAME`"
    );
    assert_eq!(
        words(&three.local(Some("n9")).unwrap_err()),
        "Q0107 `n9` is not in the list from `--member`, which has `n1`, `n2` and `node3` -> \
         give `--name` one of these names, or add this node to the list on every node"
    );
    assert_eq!(
        words(&three.local(Some("Node-3")).unwrap_err()),
        "Q0107 `Node-3` is not in the list from `--member`, which has `n1`, `n2` and `node3` -> \
         did you mean `--name node3`?"
    );
    assert_eq!(flags(&["n1=http://a:1"]).unwrap().local(None).unwrap().name, "n1");
    assert_eq!(shown(&Roster::of_one(None)), "default=http://localhost:2380");
    assert_eq!(Roster::of_one(Some("n1")).local(Some("n1")).unwrap().name, "n1");
}

#[test]
fn even_counts_and_mixed_schemes_warn() {
    let warned = |flags: &[&str]| -> Vec<String> {
        let roster = parse_member_flags(flags).unwrap();
        roster.check().unwrap().iter().map(|warning| format!("{} {}", warning.code, warning.text)).collect()
    };
    assert_eq!(warned(&["a=https://a:1"]), Vec::<String>::new());
    assert_eq!(warned(&["a=http://a:1", "b=http://b:1", "c=http://c:1"]), Vec::<String>::new());
    assert_eq!(
        warned(&["a=http://a:1", "b=http://b:1"]),
        ["Q0113 2 members survive no failure: losing either one stops the cluster; found 1 or 3"]
    );
    assert_eq!(
        warned(&["a=http://a:1", "b=http://b:1", "c=http://c:1", "d=http://d:1"]),
        ["Q0113 4 members survive 1 failure, no more than 3 do; found 3 or 5"]
    );
    let six: Vec<String> = (0..6).map(|n| format!("n{n}=http://h{n}:1")).collect();
    assert_eq!(
        warned(&six.iter().map(String::as_str).collect::<Vec<_>>()),
        ["Q0113 6 members survive 2 failures, no more than 5 do; found 5 or 7"]
    );
    assert_eq!(
        warned(&["a=https://a:1", "b=http://b:1", "c=http://c:1"]),
        ["Q0114 peer URLs mix http and https: what is sent to `b` and `c` can be read on the way"]
    );
    assert_eq!(
        warned(&["a=https://a:1,http://a:2"]),
        ["Q0114 peer URLs mix http and https: what is sent to `a` can be read on the way"]
    );
    assert_eq!(warned(&["a=https://a:1", "b=unixs://b:1", "c=https://c:1"]), Vec::<String>::new());
}

#[test]
fn a_hand_made_roster_is_checked_as_strictly() {
    let hand_made = |peer_urls: &[&str]| Roster {
        members: vec![RosterMember {
            name: "n1".to_owned(),
            peer_urls: peer_urls.iter().map(|url| (*url).to_owned()).collect(),
            client_urls: Vec::new(),
        }],
        provenance: "s".to_owned(),
    };
    assert_eq!(
        words(&hand_made(&[]).check().unwrap_err()),
        "Q0109 member `n1` has no peer URL, in the list from `s` -> give it one, such as `https://HOST:2380`"
    );
    assert_eq!(
        words(&hand_made(&["HTTP://a:1"]).check().unwrap_err()),
        "Q0109 cannot use peer URL `HTTP://a:1` of member `n1`: it is not written as etcd writes it -> write `http://a:1`"
    );
}

fn answer(names: &[&str]) -> Result<Answer> {
    let members = names.iter().map(|name| RawMember::new(*name, vec![format!("http://{name}:1")])).collect();
    Ok(Roster::build("consul:etcd", members)?.into())
}

fn silence() -> Result<Answer> {
    Err(Fault::new(Code::SourceUnreachable, "cannot reach `consul:etcd`").hint("start it"))
}

/// What an operator sees: `done n1 n2`, `wait …` or the words of the refusal.
fn next(next: Next) -> String {
    match next {
        Next::Done(roster) => format!("done {}", roster.names().join(" ")),
        Next::Wait(progress) => format!("wait {progress}"),
        Next::Refuse(fault) => words(&fault),
    }
}

#[test]
fn without_expect_nothing_waits() {
    let take = |answer| next(Gathering::new("consul:etcd", None, false).take(answer));
    assert_eq!(take(answer(&["n1"])), "done n1");
    assert_eq!(take(silence()), "Q0102 cannot reach `consul:etcd` -> start it");
    assert_eq!(
        take(answer(&[])),
        "Q0104 the list from `consul:etcd` has no members -> \
         list every founding member, or say `--expect N` to wait for them"
    );
}

#[test]
fn waiting_names_who_is_missing() {
    let mut gathering = Gathering::new("consul:etcd", Some(3), false);
    assert_eq!(next(gathering.take(silence())), "wait waiting for 3 members: cannot reach `consul:etcd`");
    assert_eq!(
        next(gathering.take(answer(&[]))),
        "wait 0 of 3 members in `consul:etcd`: 3 members not seen yet (have nobody)"
    );
    assert_eq!(
        next(gathering.take(answer(&["n1", "n2"]))),
        "wait 2 of 3 members in `consul:etcd`: 1 member not seen yet (have `n1` and `n2`)"
    );
    assert_eq!(
        next(gathering.take(answer(&["n1", "n3"]))),
        "wait 2 of 3 members in `consul:etcd`: `n2` was there and left"
    );
    let mut sick = answer(&["n1", "n2"]).unwrap();
    sick.absent.push(Absent { name: "n3".to_owned(), why: "its health check is `critical`".to_owned() });
    assert_eq!(
        next(gathering.take(Ok(sick))),
        "wait 2 of 3 members in `consul:etcd`: `n3` does not count (its health check is `critical`)"
    );
    assert_eq!(next(gathering.take(answer(&["n1", "n2", "n3"]))), "done n1 n2 n3");
}

#[test]
fn too_many_is_refused_at_once() {
    assert_eq!(
        next(Gathering::new("consul:etcd", Some(1), false).take(answer(&["n1", "n2"]))),
        "Q0110 the list from `consul:etcd` has 2 members, more than `--expect 1`: `n1` and `n2` -> \
         remove who does not belong, or correct `--expect` on every node"
    );
}

#[test]
fn a_bad_list_is_refused_at_once_even_while_waiting() {
    let fault = next(Gathering::new("consul:etcd", Some(3), false).take(answer(&["n1", "n1"])));
    assert!(fault.starts_with("Q0105 two members are named `n1`"), "{fault}");
}

#[test]
fn a_list_that_cannot_change_is_not_waited_for() {
    assert_eq!(
        next(Gathering::new("static:", Some(3), true).take(answer(&["n1", "n2"]))),
        "Q0111 the list from `static:` has 2 of 3 members: 1 member not seen yet (have `n1` and `n2`) -> \
         this list does not change by waiting: add who is missing, or correct `--expect` on every node"
    );
}

#[test]
fn giving_up_says_who_was_missing_or_who_was_silent() {
    let minutes = Duration::from_secs(120);
    let mut short = Gathering::new("consul:etcd", Some(2), false);
    short.take(answer(&["n1"]));
    assert_eq!(
        words(&short.give_up(minutes)),
        "Q0111 the list from `consul:etcd` has 1 of 2 members after 2m: 1 member not seen yet (have `n1`) -> \
         add who is missing, raise `--wait`, or correct `--expect` on every node"
    );
    let mut silent = Gathering::new("consul:etcd", Some(2), false);
    silent.take(silence());
    assert_eq!(words(&silent.give_up(minutes)), "Q0102 no list of 2 members from `consul:etcd` after 2m -> start it");
    let mut lost = Gathering::new("consul:etcd", Some(2), false);
    lost.take(answer(&["n1"]));
    lost.take(silence());
    assert_eq!(
        words(&lost.give_up(minutes)),
        "Q0102 no list of 2 members from `consul:etcd` after 2m: it answered with `n1` before and is silent now -> start it"
    );
}

proptest::proptest! {
    #[test]
    fn an_accepted_url_is_its_own_canonical_form(text in "(?i)(https?|unixs?)://[a-z0-9.:_\\[\\]%/-]{0,24}") {
        if let Ok(checked) = check_url(&text) {
            proptest::prop_assert_eq!(check_url(&checked.text), Ok(checked));
        }
    }

    #[test]
    fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..200)) {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let _ = (parse_list(&bytes, "f"), parse_initial_cluster(&text, "s"), parse_member_value("n", &bytes, "e"));
        let _ = (parse_member_flags(&[text.as_str()]), check_url(&text), quoted(&text));
    }

    #[test]
    fn no_document_makes_the_readers_panic(text in "[\\[\\]{}:,\"'&*!|>%@ \na-c0-1-]{0,60}") {
        let _ = parse_list(text.as_bytes(), "f");
    }
}
