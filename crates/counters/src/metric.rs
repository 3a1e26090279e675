//! What a figure is, for monitoring.

/// How a figure behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows while the filesystem is in use.
    Total,
    /// It goes up and down.
    Gauge,
}

/// The unit of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A number of things.
    Number,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// A figure, and the metric that shows it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Metric {
    /// The name of the figure: a field, and a key in JSON.
    pub field: &'static str,
    /// The name of the metric, without its unit and `_total`; `None` for a figure that is no metric.
    pub name: Option<&'static str>,
    /// How it behaves.
    pub kind: Kind,
    /// The unit of the metric.
    pub unit: Unit,
    /// The factor from the figure to the metric.
    pub scale: f64,
    help: &'static str,
}

impl Metric {
    const fn new(name: Option<&'static str>, kind: Kind) -> Self {
        Self { field: "", name, kind, unit: Unit::Number, scale: 1.0, help: "" }
    }

    /// A figure that only grows.
    pub const fn total(name: &'static str) -> Self {
        Self::new(Some(name), Kind::Total)
    }

    /// A figure that goes up and down.
    pub const fn gauge(name: &'static str) -> Self {
        Self::new(Some(name), Kind::Gauge)
    }

    /// A figure that is no metric.
    pub const fn no_metric() -> Self {
        Self::new(None, Kind::Total)
    }

    /// It counts bytes.
    pub const fn bytes(self) -> Self {
        Self { unit: Unit::Bytes, ..self }
    }

    /// It counts blocks of 4 KiB; the metric is in bytes.
    pub const fn blocks(self) -> Self {
        Self { unit: Unit::Bytes, scale: 4096.0, ..self }
    }

    /// It counts milliseconds; the metric is in seconds.
    pub const fn milliseconds(self) -> Self {
        Self { unit: Unit::Seconds, scale: 1e-3, ..self }
    }

    /// It counts nanoseconds; the metric is in seconds.
    pub const fn nanoseconds(self) -> Self {
        Self { unit: Unit::Seconds, scale: 1e-9, ..self }
    }

    /// It belongs to this field, whose doc comment is its help.
    pub const fn of(self, field: &'static str, help: &'static str) -> Self {
        Self { field, help, ..self }
    }

    /// The sentence that explains it, without the full stop.
    pub fn help(&self) -> &'static str {
        sentence(self.help)
    }
}

/// A distribution, and the metric that shows it as a histogram.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DistributionMetric {
    /// The name of the distribution: a field, and a key in JSON.
    pub field: &'static str,
    /// The name of the metric, without its unit.
    pub name: &'static str,
    /// The unit of the metric.
    pub unit: Unit,
    /// How many units of the distribution make one of the metric.
    pub per_unit: f64,
    /// The buckets of the metric end at 2 to the power of these, from the first to the last.
    pub powers: (u32, u32),
    help: &'static str,
}

impl DistributionMetric {
    /// Times in nanoseconds; the metric is in seconds, from 4 µs to 17 s.
    pub const fn nanoseconds(name: &'static str) -> Self {
        Self { field: "", name, unit: Unit::Seconds, per_unit: 1e9, powers: (12, 34), help: "" }
    }

    /// Numbers of things, from 2 to 4096.
    pub const fn numbers(name: &'static str) -> Self {
        Self { field: "", name, unit: Unit::Number, per_unit: 1.0, powers: (1, 12), help: "" }
    }

    /// It belongs to this field, whose doc comment is its help.
    pub const fn of(self, field: &'static str, help: &'static str) -> Self {
        Self { field, help, ..self }
    }

    /// The sentence that explains it, without the full stop.
    pub fn help(&self) -> &'static str {
        sentence(self.help)
    }
}

fn sentence(comment: &'static str) -> &'static str {
    comment.trim().trim_end_matches('.')
}
