//! Codes, their pages and how they are found.

use super::*;

#[test]
fn every_page_opens_with_its_code_and_names_a_way_out() {
    for code in Code::ALL {
        let page = code.page();
        assert!(page.starts_with(&format!("# {code}: ")), "{code}: headline");
        assert!(page.contains("## What to do"), "{code}: no way out");
    }
}

#[test]
fn codes_are_unique_and_ascending() {
    assert!(Code::ALL.windows(2).all(|pair| pair[0].as_str() < pair[1].as_str()));
}

#[test]
fn codes_are_found_as_people_type_them() {
    assert_eq!(Code::parse("q0102"), Some(Code::SourceUnreachable));
    assert_eq!(Code::parse("0102"), Some(Code::SourceUnreachable));
    assert_eq!(Code::parse("Q9999"), None);
}
