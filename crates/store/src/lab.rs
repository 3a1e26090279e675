//! The lab: everything that tests and measurements switch off or break.
//!
//! All of it is part of every build, and each question costs a comparison. A cargo feature would
//! not separate it: the program itself depends on the crash laboratory (`syncline demo`), so cargo
//! would turn the feature on for everything that is built together. Also, what is tested should be
//! what is shipped.
//!
//! The rest of the store asks whether a rule [is broken](Store::breaks) or a mechanism is
//! [switched off](Store::ablates), or calls a method whose name begins with `lab_`. By default such
//! a method does the usual thing, or nothing. They are in [`sync`] and [`changes`].

mod ablation;
mod canary;
mod changes;
mod give_way;
mod sync;

pub use ablation::{Ablation, Ablations};
pub use canary::Canary;
pub use give_way::GiveWay;

use crate::Store;

/// Everything that tests and measurements switch off or break; by default nothing.
#[derive(Clone, Default, Debug)]
pub struct Lab {
    /// Mechanisms switched off for measurements.
    pub ablations: Ablations,
    /// A rule broken on purpose, to test the tests.
    #[doc(hidden)]
    pub canary: Option<Canary>,
    /// Lets a test run other tasks first between two steps.
    #[doc(hidden)]
    pub give_way: GiveWay,
}

impl Lab {
    /// Without these mechanisms.
    pub fn without(ablations: impl IntoIterator<Item = Ablation>) -> Self {
        Self { ablations: ablations.into_iter().collect(), ..Self::default() }
    }

    /// With this rule broken, if any.
    #[doc(hidden)]
    pub fn breaking(canary: Option<Canary>) -> Self {
        Self { canary, ..Self::default() }
    }

    /// With other tasks let in where a test wants it.
    #[doc(hidden)]
    pub fn giving_way(give_way: GiveWay) -> Self {
        Self { give_way, ..Self::default() }
    }

    /// True when this rule is to be broken.
    pub(crate) fn breaks(&self, rule: Canary) -> bool {
        self.canary == Some(rule)
    }

    /// True when the mechanism is switched off.
    pub(crate) fn ablates(&self, ablation: Ablation) -> bool {
        self.ablations.contains(ablation)
    }
}

impl Store {
    /// True when this rule is to be broken.
    #[doc(hidden)]
    pub fn breaks(&self, rule: Canary) -> bool {
        self.options.lab.breaks(rule)
    }

    /// True when the mechanism is switched off.
    pub fn ablates(&self, ablation: Ablation) -> bool {
        self.options.lab.ablates(ablation)
    }

    /// Lets a test run other tasks first.
    #[doc(hidden)]
    #[track_caller]
    pub fn give_way(&self) {
        self.options.lab.give_way.now();
    }
}
