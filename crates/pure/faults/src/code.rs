//! The closed list of fault codes, each with its page and the exit code it ends a command with.

use crate::Exit;

#[macro_use]
mod offline;
#[macro_use]
mod cluster;
#[macro_use]
mod systems;

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $exit:ident;)*) => {
        /// One operator-visible fault or finding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])* $name,)* }

        impl Code {
            /// Every code, in the order of their numbers.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// `Q` and four digits.
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code,)* }
            }

            /// The exit code of a command that ends with this fault.
            pub fn exit(self) -> Exit {
                match self { $(Code::$name => Exit::$exit,)* }
            }

            /// The page from `docs/faults/`, in Markdown.
            pub fn page(self) -> &'static str {
                match self { $(Code::$name => include_str!(concat!("../../../../docs/faults/", $code, ".md")),)* }
            }
        }
    };
}

offline! { cluster systems codes }

impl Code {
    /// Finds a code by its number, in any case, with or without the `Q`.
    pub fn parse(text: &str) -> Option<Code> {
        let digits = text.trim().trim_start_matches(['Q', 'q']);
        Code::ALL.iter().copied().find(|code| &code.as_str()[1..] == digits)
    }

    /// The page's headline without the code.
    pub fn title(self) -> &'static str {
        let headline = self.page().lines().next().unwrap_or_default();
        headline.split_once(": ").map_or(headline, |(_, title)| title)
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
