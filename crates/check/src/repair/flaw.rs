//! Rules that a test may have a repair break, to see that the search for what repairs break notices.
//!
//! Part of every build, as the canaries of the store are: what is tested is what is shipped.

/// A deliberately broken rule. Where the plan is wrong, what would find it before anything is written is left out, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub enum Flaw {
    /// Take the first item of an object for all that could be its inode item.
    FirstItemOnly,
    /// Let an extent stay where the table of snapshots lies.
    TableUnguarded,
    /// Take away the half of a logged block that is left.
    HalvesGoAway,
    /// Write what is planned before the whole plan is known.
    WriteAsItGoes,
    /// Write the superblock before what it leads to.
    SwitchEarly,
    /// Give up what lies below an inner node that is lost.
    InnerNodesGoAway,
    /// Leave holes where extents were lost.
    LostBecomesZeros,
    /// Call the image clean without looking at it again.
    Unchecked,
    /// Leave quotas to a second pass. That breaks no rule: it makes a repair that needs one.
    QuotasLater,
}

impl Flaw {
    /// All that break a rule.
    pub const ALL: [Self; 8] = [
        Self::FirstItemOnly,
        Self::TableUnguarded,
        Self::HalvesGoAway,
        Self::WriteAsItGoes,
        Self::SwitchEarly,
        Self::InnerNodesGoAway,
        Self::LostBecomesZeros,
        Self::Unchecked,
    ];

    /// The result is written as it is.
    pub(crate) fn skips_verification(self) -> bool {
        // The others are wrong in what they make of an image, which nothing but a look at the sound one shows.
        let as_ever = [
            Self::WriteAsItGoes,
            Self::SwitchEarly,
            Self::InnerNodesGoAway,
            Self::LostBecomesZeros,
            Self::QuotasLater,
        ];
        !as_ever.contains(&self)
    }
}
