//! Counters that are defined once: an entry in a list is the counter itself, its figure in a snapshot, its key
//! in JSON, and the metric that monitoring shows, with its unit and the sentence that explains it.
//!
//! ```
//! syncline_counters::counters! {
//!     /// Counts while the program runs.
//!     #[derive(Default)]
//!     struct Live;
//!     /// All counts at one moment.
//!     #[derive(Default, Debug)]
//!     pub struct Snapshot;
//!     counted {
//!         /// Names looked up.
//!         lookups: total("lookups"),
//!         /// Bytes that callers wrote.
//!         written_bytes: total("written").bytes(),
//!     }
//!     told {
//!         /// Dirty data in memory.
//!         dirty_bytes: gauge("dirty").bytes(),
//!     }
//! }
//!
//! let live = Live::default();
//! live.lookups.add(2);
//! let snapshot = Snapshot { dirty_bytes: 4096, ..live.counts() };
//! assert_eq!((snapshot.lookups, snapshot.dirty_bytes), (2, 4096));
//! let written = Snapshot::METRICS[1];
//! assert_eq!((written.field, written.help()), ("written_bytes", "Bytes that callers wrote"));
//! ```

mod distribution;
mod metric;
mod recorder;

pub use distribution::{Distribution, Distributions};
pub use metric::{DistributionMetric, Kind, Metric, Unit};
pub use recorder::{LatencySummary, Recorder};

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that many threads add to.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the count.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The count so far.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Defines a struct whose fields are figures of type `u64`, and `METRICS`, the list of their metrics. A
/// figure is written `name: metric`; its doc comment becomes the metric's help.
#[macro_export]
macro_rules! figures {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[doc = $help:literal])+ $field:ident: $made:ident($($metric:literal)?)$(.$unit:ident())*,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[doc = $help])+ pub $field: u64,)*
        }

        impl $name {
            /// The metric of each figure.
            pub const METRICS: &'static [$crate::Metric] = &[
                $($crate::Metric::$made($($metric)?)$(.$unit())*.of(stringify!($field), concat!($($help),+)),)*
            ];
        }
    };
}

/// Defines a struct of live counters and the struct of their snapshot. The blocks, of which all but
/// `counted` may be left out:
///
/// - `beside`: other fields of the live counters, with their types
/// - `counted`: counters, each with its metric as for [`figures!`]
/// - `told`: figures in the snapshot alone, which its maker fills in
/// - `recorded`: distributions: a [`Recorder`] in the live counters, a [`LatencySummary`] in the snapshot,
///   and the metric of a [`Distribution`]
/// - `also`: other fields of the snapshot, with their types
#[macro_export]
macro_rules! counters {
    (
        $(#[$live_meta:meta])*
        $live_vis:vis struct $live:ident;
        $(#[$meta:meta])*
        $vis:vis struct $name:ident;
        $(beside {
            $($beside_vis:vis $beside:ident: $beside_type:ty,)*
        })?
        counted {
            $($(#[doc = $help:literal])+ $field:ident: $made:ident($($metric:literal)?)$(.$unit:ident())*,)*
        }
        $(told {
            $($(#[doc = $told_help:literal])+ $told:ident: $told_made:ident($($told_metric:literal)?)$(.$told_unit:ident())*,)*
        })?
        $(recorded {
            $($(#[doc = $recorded_help:literal])+ $recorded:ident: $recorded_made:ident($recorded_metric:literal),)*
        })?
        $(also {
            $($(#[$also_meta:meta])* $also:ident: $also_type:ty,)*
        })?
    ) => {
        $(#[$live_meta])*
        $live_vis struct $live {
            $($(#[doc = $help])+ pub $field: $crate::Counter,)*
            $($($(#[doc = $recorded_help])+ pub $recorded: $crate::Recorder,)*)?
            $($($beside_vis $beside: $beside_type,)*)?
        }

        $(#[$meta])*
        $vis struct $name {
            $($(#[doc = $help])+ pub $field: u64,)*
            $($($(#[doc = $told_help])+ pub $told: u64,)*)?
            $($($(#[doc = $recorded_help])+ pub $recorded: $crate::LatencySummary,)*)?
            $($($(#[$also_meta])* pub $also: $also_type,)*)?
        }

        impl $live {
            /// The counts and distributions so far, the other figures at their defaults.
            #[allow(clippy::needless_update)] // Not every snapshot has other figures.
            $live_vis fn counts(&self) -> $name {
                $name {
                    $($field: self.$field.get(),)*
                    $($($recorded: self.$recorded.summary(),)*)?
                    ..$name::default()
                }
            }

            $(
                /// The distributions so far, by name.
                $live_vis fn distributions(&self) -> $crate::Distributions {
                    [$((stringify!($recorded), self.$recorded.distribution()),)*].into()
                }
            )?
        }

        impl $name {
            /// The metric of each figure.
            pub const METRICS: &'static [$crate::Metric] = &[
                $($crate::Metric::$made($($metric)?)$(.$unit())*.of(stringify!($field), concat!($($help),+)),)*
                $($(
                    $crate::Metric::$told_made($($told_metric)?)$(.$told_unit())*
                        .of(stringify!($told), concat!($($told_help),+)),
                )*)?
            ];
            $(
                /// What each distribution is.
                pub const DISTRIBUTIONS: &'static [$crate::DistributionMetric] = &[$(
                    $crate::DistributionMetric::$recorded_made($recorded_metric)
                        .of(stringify!($recorded), concat!($($recorded_help),+)),
                )*];
            )?
        }
    };
}
