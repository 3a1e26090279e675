//! Lists of rules that a test breaks on purpose, to show that a search finds defects; and of
//! mechanisms that are switched off to measure them.
//!
//! ```
//! syncline_rules::rules! {
//!     /// A deliberately broken rule.
//!     pub enum Canary {
//!         /// Acknowledge without a flush.
//!         SkipFlush,
//!     }
//! }
//! assert_eq!(Canary::SkipFlush.to_string(), "skip-flush");
//! assert_eq!("skip-flush".parse(), Ok(Canary::SkipFlush));
//! assert_eq!(Canary::ALL, [Canary::SkipFlush]);
//! ```
#![forbid(unsafe_code)]

/// Defines an enum with the list `ALL` of its variants. Each is shown as its name, and parsed from it:
/// that of the variant, in lower case with dashes.
#[macro_export]
macro_rules! rules {
    ($(#[$about:meta])* pub enum $Rules:ident { $($(#[$doc:meta])* $Rule:ident,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $Rules {
            $($(#[$doc])* $Rule,)+
        }

        impl $Rules {
            /// All of them.
            pub const ALL: [Self; [$(stringify!($Rule)),+].len()] = [$(Self::$Rule),+];

            /// Its name.
            pub fn name(self) -> String {
                $crate::name_of(&format!("{self:?}"))
            }
        }

        impl ::std::fmt::Display for $Rules {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(&self.name())
            }
        }

        impl ::std::str::FromStr for $Rules {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|rule| rule.name() == text);
                found.ok_or_else(|| format!("choose from {}", Self::ALL.map(Self::name).join(", ")))
            }
        }
    };
}

/// A variant's name in lower case with dashes.
#[doc(hidden)]
pub fn name_of(variant: &str) -> String {
    let mut name = String::new();
    for letter in variant.chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    rules! {
        /// A deliberately broken rule.
        pub enum Canary {
            /// Acknowledge without a flush.
            SkipFlush,
            /// Do not compare named data with its checksums at replay.
            SkipDataVerification,
        }
    }

    #[test]
    fn names_lead_back_to_their_rules() {
        for canary in Canary::ALL {
            assert_eq!(canary.name().parse(), Ok(canary));
        }
        assert_eq!(Canary::ALL.map(Canary::name), ["skip-flush", "skip-data-verification"]);
        assert!("skipflush".parse::<Canary>().unwrap_err().ends_with("skip-flush, skip-data-verification"));
    }
}
