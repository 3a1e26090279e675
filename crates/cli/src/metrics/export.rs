//! Samples in the text format of OpenMetrics.

use super::table::{DISTRIBUTIONS, SECTIONS};
use crate::live::Sample;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{self, Registry};
use std::fmt::Error;
use std::path::Path;
use syncline_counters::{Distribution, DistributionMetric, Kind, Metric, Unit};

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PREFIX: &str = "syncline";

type Labels = Vec<(&'static str, String)>;

/// A mount and its sample; `None` if it can't be asked.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// Where it is mounted.
    pub mount: String,
    /// The daemon's figures.
    pub sample: Option<Sample>,
}

/// The metrics of these mounts.
pub fn text(mounts: Vec<Mounted>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Mounts(mounts)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a String can't fail");
    text
}

#[derive(Debug)]
struct Mounts(Vec<Mounted>);

impl Collector for Mounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.up(&mut encoder)?;
        self.info(&mut encoder)?;
        self.read_only(&mut encoder)?;
        self.gave_up_writing(&mut encoder)?;
        self.lost(&mut encoder)?;
        self.image_changed(&mut encoder)?;
        self.requests(&mut encoder)?;
        for (section, metrics) in SECTIONS {
            metrics.iter().try_for_each(|metric| self.metric(section, metric, &mut encoder))?;
        }
        for (prefix, metrics) in DISTRIBUTIONS {
            metrics.iter().try_for_each(|metric| self.distribution(prefix, metric, &mut encoder))?;
        }
        Ok(())
    }
}

impl Mounts {
    /// The mounts that could be asked, and the label that tells them apart.
    fn asked(&self) -> impl Iterator<Item = (Labels, &Sample)> {
        self.0.iter().filter_map(|mounted| Some((mounted.labels(), mounted.sample.as_ref()?)))
    }

    fn up(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 if the daemon behind the mount answers";
        let mut metric = encoder.encode_descriptor("up", help, None, MetricType::Gauge)?;
        for mounted in &self.0 {
            let up = u64::from(mounted.sample.is_some());
            metric.encode_family(&mounted.labels())?.encode_gauge(&up)?;
        }
        Ok(())
    }

    fn info(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "What is mounted";
        let mut metric = encoder.encode_descriptor("mount", help, None, MetricType::Info)?;
        for (mut labels, sample) in self.asked() {
            for (label, at) in [
                ("image", "/daemon/image"),
                ("version", "/daemon/version"),
                ("transport", "/daemon/transport"),
            ] {
                labels.push((label, sample.text(at).to_owned()));
            }
            labels.push(("pid", sample.number("/daemon/pid").to_string()));
            metric.encode_info(&labels)?;
        }
        Ok(())
    }

    fn read_only(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 if nothing can be written, by choice or after an error";
        let mut metric = encoder.encode_descriptor("read_only", help, None, MetricType::Gauge)?;
        for (labels, sample) in self.asked() {
            let read_only = u64::from(!sample.stats["read_only"].is_null());
            metric.encode_family(&labels)?.encode_gauge(&read_only)?;
        }
        Ok(())
    }

    fn gave_up_writing(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 if it was mounted for writing and nothing can be written any more, after an error";
        let mut metric = encoder.encode_descriptor("gave_up_writing", help, None, MetricType::Gauge)?;
        for (labels, sample) in self.asked() {
            metric.encode_family(&labels)?.encode_gauge(&u64::from(sample.gave_up_writing()))?;
        }
        Ok(())
    }

    fn lost(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 if the image was lost, to another host or because its storage was away: mount it again";
        let mut metric = encoder.encode_descriptor("image_lost", help, None, MetricType::Gauge)?;
        for (labels, sample) in self.asked() {
            let lost = u64::from(sample.stats["lost"].is_object());
            metric.encode_family(&labels)?.encode_gauge(&lost)?;
        }
        Ok(())
    }

    fn image_changed(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "1 if the image file was deleted, moved, replaced or cut off below the mount";
        let mut metric = encoder.encode_descriptor("image_changed", help, None, MetricType::Gauge)?;
        for (labels, sample) in self.asked() {
            let changed = u64::from(sample.stats["image_changed"].is_string());
            metric.encode_family(&labels)?.encode_gauge(&changed)?;
        }
        Ok(())
    }

    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests of the kernel by kind";
        let mut metric = encoder.encode_descriptor("requests", help, None, MetricType::Counter)?;
        for (labels, sample) in self.asked() {
            for (kind, count) in sample.stats["requests"].as_object().into_iter().flatten() {
                let labels: Labels = labels.iter().cloned().chain([("kind", kind.clone())]).collect();
                let count = count.as_u64().unwrap_or(0);
                metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn metric(&self, section: &str, of: &Metric, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(name) = of.name else { return Ok(()) };
        let sort = match of.kind {
            Kind::Total => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
        };
        let unit = unit(of.unit);
        let value = |sample: &Sample| sample.stats[section][of.field].as_u64();
        let told = self.asked().filter_map(|(labels, sample)| Some((labels, value(sample)?)));
        let told: Vec<_> = told.collect();
        if told.is_empty() {
            return Ok(());
        }
        let mut metric = encoder.encode_descriptor(name, of.help(), unit.as_ref(), sort)?;
        for (labels, value) in told {
            let value = value as f64 * of.scale;
            let mut one = metric.encode_family(&labels)?;
            match of.kind {
                Kind::Total => one.encode_counter::<NoLabelSet, _, f64>(&value, None)?,
                Kind::Gauge => one.encode_gauge(&value)?,
            }
        }
        Ok(())
    }

    fn distribution(
        &self,
        prefix: &str,
        of: &DistributionMetric,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), Error> {
        let key = format!("{prefix}{}", of.field);
        let told =
            self.asked().filter_map(|(labels, sample)| Some((labels, sample.distributions.get(&key)?)));
        let told: Vec<_> = told.collect();
        if told.is_empty() {
            return Ok(());
        }
        let (unit, sort) = (unit(of.unit), MetricType::Histogram);
        let mut metric = encoder.encode_descriptor(of.name, of.help(), unit.as_ref(), sort)?;
        for (labels, distribution) in told {
            let buckets = buckets(distribution, of);
            let (sum, count) = (distribution.sum / of.per_unit, distribution.count());
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// The unit that is appended to a name.
fn unit(of: Unit) -> Option<registry::Unit> {
    match of {
        Unit::Number => None,
        Unit::Bytes => Some(registry::Unit::Bytes),
        Unit::Seconds => Some(registry::Unit::Seconds),
    }
}

impl Mounted {
    /// The sample of the daemon behind a directory.
    pub fn new(directory: &Path, sample: Option<Sample>) -> Self {
        // A label that is the same wherever the program was started. Only an empty path has none.
        let mount = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        Self { mount: mount.to_string_lossy().into_owned(), sample }
    }

    fn labels(&self) -> Labels {
        vec![("mountpoint", self.mount.clone())]
    }
}

/// The number of values in each bucket, with its upper end. Values are integers, and the store's
/// buckets also end at powers of two: those up to and including 2^n − 1 are in the bucket whose
/// reported end is 2^n − 1.
fn buckets(distribution: &Distribution, of: &DistributionMetric) -> Vec<(f64, u64)> {
    let (first, last) = of.powers;
    let ends = (first..=last).map(|power| 1u64 << power);
    let mut rest = distribution.buckets.iter().peekable();
    let mut made: Vec<(f64, u64)> = ends
        .map(|end| {
            let mut count = 0;
            while let Some((_, _, more)) = rest.next_if(|(_, above, _)| *above <= end) {
                count += more;
            }
            ((end - 1) as f64 / of.per_unit, count)
        })
        .collect();
    made.push((f64::INFINITY, rest.map(|(_, _, count)| count).sum()));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::collections::{BTreeMap, HashSet};
    use std::time::Instant;

    /// Every number of a daemon's statistics, as a JSON pointer.
    fn numbers(value: &Value, at: String, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| numbers(value, format!("{at}/{name}"), found));
            }
            Value::Number(_) => found.push(at),
            _ => {}
        }
    }

    /// Numbers of `stats` that are reported in another way: the process in `mount_info`, ratios by their
    /// parts, and those of a library, which a daemon does not have.
    fn is_no_metric(at: &str) -> bool {
        let figure = |(section, metrics): (&str, &[Metric])| {
            metrics.iter().any(|of| of.name.is_none() && at == format!("/{section}/{}", of.field))
        };
        let summary = |(prefix, metrics): (&str, &[DistributionMetric])| {
            let section = if prefix.is_empty() { "store" } else { "network" };
            metrics.iter().any(|of| at.starts_with(&format!("/{section}/{}/", of.field)))
        };
        ["/daemon/pid", "/store/write_amplification"].contains(&at)
            || SECTIONS.into_iter().any(figure)
            || DISTRIBUTIONS.into_iter().any(summary)
    }

    /// Each figure in `stats` with its metric, and each distribution with its own.
    fn names() -> Vec<String> {
        let full = |name: &str, of: Unit, total: bool| {
            let unit = unit(of).map(|unit| format!("_{}", unit.as_str())).unwrap_or_default();
            format!("{PREFIX}_{name}{unit}{}", if total { "_total" } else { "" })
        };
        let mut names = Vec::new();
        for (section, metrics) in SECTIONS {
            for of in metrics {
                let Some(name) = of.name else { continue };
                let name = full(name, of.unit, of.kind == Kind::Total);
                names.push(format!("/{section}/{} {name}", of.field));
            }
        }
        for (prefix, metrics) in DISTRIBUTIONS {
            names.extend(
                metrics.iter().map(|of| format!("{prefix}{} {}", of.field, full(of.name, of.unit, false))),
            );
        }
        names.sort();
        names
    }

    #[test]
    fn every_number_that_a_daemon_tells_is_a_metric() {
        let stats = crate::commands::figures::of_new_filesystem();
        let mut found = Vec::new();
        numbers(&stats, String::new(), &mut found);
        let names = names();
        let told: HashSet<&str> = names.iter().map(|line| line.split(' ').next().unwrap()).collect();
        for at in &found {
            let known = told.contains(&**at) || is_no_metric(at) || at.starts_with("/requests/");
            assert!(known, "{at} is no metric");
        }
        for at in told.iter().filter(|at| at.starts_with('/')) {
            assert!(found.iter().any(|found| found == at), "there is no {at}");
        }
    }

    /// Dashboards, alarms and programs know these names: one that changes breaks them.
    #[test]
    fn names_stay_as_they_are() {
        let known: Vec<&str> = include_str!("names.txt").lines().collect();
        assert_eq!(names(), known);
    }

    #[test]
    fn names_follow_the_rules() {
        let metrics = SECTIONS.iter().flat_map(|(_, metrics)| *metrics);
        let names = metrics.filter_map(|of| Some((of.name?, of.help())));
        let distributions = DISTRIBUTIONS.iter().flat_map(|(_, metrics)| *metrics);
        let mut seen = HashSet::new();
        for (name, help) in names.chain(distributions.map(|of| (of.name, of.help()))) {
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            for ending in ["_total", "_bytes", "_seconds", "_count", "_sum", "_bucket", "_ns", "_ms"] {
                assert!(!name.ends_with(ending), "{name}: the ending is added");
            }
            assert!(seen.insert(name), "{name} is there twice");
            assert!(!help.is_empty() && !help.contains('\n') && !help.ends_with('.'), "{name}: {help}");
        }
    }

    #[test]
    fn buckets_end_at_powers_of_two_and_have_every_value() {
        let of = &DISTRIBUTIONS[0].1[0];
        let buckets_of_store = vec![(100, 101, 3), (3584, 4096, 5), (4096, 4608, 7), (1 << 40, 9 << 37, 1)];
        let distribution = Distribution { sum: 5e9, buckets: buckets_of_store };
        let made = buckets(&distribution, of);
        assert_eq!(made[0], (4.095e-6, 8));
        assert_eq!(made[1], (8.191e-6, 7));
        assert_eq!(made.last(), Some(&(f64::INFINITY, 1)));
        assert_eq!(made.iter().map(|(_, count)| count).sum::<u64>(), 16);
    }

    #[test]
    fn a_mount_that_is_read_only_by_choice_has_not_given_up_writing() {
        let told = |read_only: Value, mounted_read_only: bool| {
            let stats = json!({ "read_only": read_only, "daemon": { "read_only": mounted_read_only } });
            let sample = Sample { stats, distributions: BTreeMap::new(), taken: Instant::now() };
            let text = text(vec![Mounted { mount: "/mnt".into(), sample: Some(sample) }]);
            let has = |line: &str| text.contains(&format!("{line}{{mountpoint=\"/mnt\"}} 1"));
            (has("syncline_read_only"), has("syncline_gave_up_writing"))
        };
        assert_eq!(told(Value::Null, false), (false, false));
        assert_eq!(told("the image was opened read-only".into(), true), (true, false));
        assert_eq!(told("remounted read-only".into(), false), (true, false));
        assert_eq!(told("the device can't be written".into(), false), (true, true));
    }

    #[test]
    fn a_mount_that_does_not_answer_is_down() {
        let told = text(vec![Mounted { mount: "/mnt/\"odd\"\\".into(), sample: None }]);
        assert!(told.contains(r#"syncline_up{mountpoint="/mnt/\"odd\"\\"} 0"#), "{told}");
        assert!(told.ends_with("# EOF\n"), "{told}");
    }
}
