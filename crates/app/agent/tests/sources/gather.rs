//! Waiting for a complete list.

use std::time::{Duration, Instant};

use quorate_agent::sources::{SourceOptions, open};

use super::{expect, refusal, shown};

const THREE: &str = "static:n1=http://a:1,n2=http://b:1,n3=http://c:1";

#[test]
fn a_complete_list_is_not_waited_for() {
    let source = open(THREE, &SourceOptions::default()).unwrap();
    let (result, said) = expect(source.as_ref(), 3, Duration::from_secs(60));
    assert_eq!(shown(&result.unwrap()), "n1=http://a:1 n2=http://b:1 n3=http://c:1");
    assert_eq!(said, Vec::<String>::new());
}

#[test]
fn too_many_members_are_refused_by_name() {
    let source = open(THREE, &SourceOptions::default()).unwrap();
    assert_eq!(
        refusal(expect(source.as_ref(), 2, Duration::ZERO).0),
        "Q0110 the list from `static:` has 3 members, more than `--expect 2`: `n1`, `n2` and `n3` -> \
         remove who does not belong, or correct `--expect` on every node"
    );
    assert_eq!(
        refusal(expect(source.as_ref(), 0, Duration::ZERO).0),
        "Q0003 cannot expect `0` members -> say how many members found the cluster, or leave `--expect` out"
    );
}

#[test]
fn a_list_that_cannot_change_is_refused_at_once() {
    let source = open(THREE, &SourceOptions::default()).unwrap();
    let start = Instant::now();
    assert_eq!(
        refusal(expect(source.as_ref(), 5, Duration::from_secs(600)).0),
        "Q0111 the list from `static:` has 3 of 5 members: 2 members not seen yet (have `n1`, `n2` and `n3`) -> \
         this list does not change by waiting: add who is missing, or correct `--expect` on every node"
    );
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn waiting_ends_with_who_was_missing() {
    let source = open("exec:echo 'n1: http://a:1'", &SourceOptions::default()).unwrap();
    let start = Instant::now();
    let (result, said) = expect(source.as_ref(), 3, Duration::from_secs(1));
    assert_eq!(
        refusal(result),
        "Q0111 the list from `exec:echo` has 1 of 3 members after 1s: 2 members not seen yet (have `n1`) -> \
         add who is missing, raise `--wait`, or correct `--expect` on every node"
    );
    // One line, though it was asked many times.
    assert_eq!(said, ["1 of 3 members in `exec:echo`: 2 members not seen yet (have `n1`)"]);
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_source_that_stays_silent_ends_as_unreachable() {
    let source = open("exec:false", &SourceOptions::default()).unwrap();
    let (result, said) = expect(source.as_ref(), 3, Duration::from_millis(500));
    assert_eq!(
        refusal(result),
        "Q0102 no list of 3 members from `exec:false` after 500ms <- no list from `exec:false`: it ended with exit code 1 -> \
         run it by hand; it must print the list and end with 0"
    );
    assert_eq!(said, ["waiting for 3 members: no list from `exec:false`: it ended with exit code 1"]);
}

#[test]
fn a_member_that_left_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let flag = dir.path().join("seen");
    let script = format!(
        "exec+shell:if [ -e {0} ]; then echo 'n1: http://a:1'; else touch {0}; printf 'n1: http://a:1\\nn2: http://b:1'; fi",
        flag.display()
    );
    let source = open(&script, &SourceOptions::default()).unwrap();
    let (result, said) = expect(source.as_ref(), 3, Duration::from_millis(800));
    assert!(refusal(result).starts_with(
        "Q0111 the list from `exec+shell:` has 1 of 3 members after 800ms: `n2` was there and left, 1 member not seen yet \
         (have `n1`)"
    ));
    assert_eq!(said.len(), 2, "{said:?}");
}
