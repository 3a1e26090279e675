//! Rules that a test can make a repair break, to prove that the search for bad repairs notices.
//!
//! Part of every build, like the store's canaries: the tested code is the shipped code.

syncline_rules::rules! {
    /// A deliberately broken rule. For a flaw in the plan, the verification that would catch it before
    /// writing is skipped as well.
    #[doc(hidden)]
    pub enum Flaw {
        /// Treat the first item of an object as the only candidate for its inode item.
        FirstItemOnly,
        /// Let an extent stay on the blocks of the table of snapshots.
        TableUnguarded,
        /// Remove the remaining half of a logged block.
        HalvesGoAway,
        /// Write each pass to the image before the whole plan is known.
        WriteAsItGoes,
        /// Write the superblock before the structures that it points to.
        SwitchEarly,
        /// Leave holes where extents were lost.
        LostBecomesZeros,
        /// Call the image clean without checking it again.
        Unchecked,
        /// Leave quotas to a second pass. This breaks no rule: it forces a repair that needs two
        /// passes.
        QuotasLater,
    }
}

impl Flaw {
    /// True if the result is written without verification.
    pub(crate) fn skips_verification(self) -> bool {
        // Verification would not catch these others: their result is consistent, and only a
        // comparison with the undamaged image shows the fault.
        let as_ever = [Self::WriteAsItGoes, Self::SwitchEarly, Self::LostBecomesZeros, Self::QuotasLater];
        !as_ever.contains(&self)
    }
}
