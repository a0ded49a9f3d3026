//! Rates of several ways to do the same, the first of which is the reference.
//!
//! A ratio is the median of the rounds' ratios: a virtual machine's speed changes by a third within seconds,
//! but little within a round.

use super::load::{Cores, Load};

/// Rows of loads, with a column for each way.
pub(crate) struct Comparison {
    pub(crate) title: &'static str,
    pub(crate) names: Vec<&'static str>,
    pub(crate) rows: Vec<Measured>,
}

/// One load, in every way.
pub(crate) struct Measured {
    pub(crate) load: Load,
    pub(crate) cores: Cores,
    /// Of each way, the rates of all rounds, in their order.
    pub(crate) rates: Vec<Vec<f64>>,
}

// === impl Comparison ===

impl Comparison {
    pub(crate) fn new(
        title: &'static str,
        names: Vec<&'static str>,
        loads: impl IntoIterator<Item = (Load, Cores)>,
    ) -> Self {
        let row = |(load, cores)| Measured { load, cores, rates: vec![Vec::new(); names.len()] };
        let rows = loads.into_iter().map(row).collect();
        Self { title, names, rows }
    }

    /// Forgets the rates.
    pub(crate) fn clear(&mut self) {
        self.rows.iter_mut().flat_map(|row| &mut row.rates).for_each(Vec::clear);
    }

    /// The row of a load whose client and server share a core.
    pub(crate) fn on_one_core(&self, load: Load) -> Option<&Measured> {
        self.rows.iter().find(|it| it.load == load && it.cores == Cores::Same)
    }

    /// The rate of one way, relative to that of another.
    pub(crate) fn ratio(&self, load: Load, of: &str, to: &str) -> Option<f64> {
        let at = |name| self.names.iter().position(|it| *it == name);
        let row = self.on_one_core(load)?;
        Some(row.ratio(at(of)?, at(to)?))
    }
}

// === impl Measured ===

impl Measured {
    pub(crate) fn push(&mut self, way: usize, rate: f64) {
        if let Some(rates) = self.rates.get_mut(way) {
            rates.push(rate);
        }
    }

    pub(crate) fn median(&self, way: usize) -> f64 {
        self.rates.get(way).map_or(f64::NAN, |rates| median(rates))
    }

    /// The rate of a way relative to that of the first.
    pub(crate) fn share(&self, way: usize) -> f64 {
        self.ratio(way, 0)
    }

    fn ratio(&self, of: usize, to: usize) -> f64 {
        let [of, to] = [of, to].map(|way| self.rates.get(way).map_or(&[][..], Vec::as_slice));
        median(&of.iter().zip(to).map(|(of, to)| of / to).collect::<Vec<_>>())
    }

    pub(crate) fn cores(&self) -> &'static str {
        match self.cores {
            Cores::Same => "one core",
            Cores::Two => "two cores",
        }
    }

    /// The unit of the figures, and what to multiply a rate by.
    pub(crate) fn unit(&self) -> (&'static str, f64) {
        if self.load == Load::Stream { ("Gbit/s", 8e-9) } else { ("1000/s", 1e-3) }
    }
}

/// Of an even number of rates, the upper of the two in the middle.
pub(crate) fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_on_one_core() {
        let loads =
            [(Load::Stream, Cores::Two), (Load::Stream, Cores::Same), (Load::RequestResponse, Cores::Same)];
        let mut comparison = Comparison::new("", vec!["slow", "fast"], loads);
        for (slow, fast) in [(1.0, 2.0), (9.0, 27.0), (2.0, 80.0)] {
            comparison.rows[1].push(0, slow);
            comparison.rows[1].push(1, fast);
        }
        comparison.rows[0].push(0, 7.0);
        assert_eq!(comparison.ratio(Load::Stream, "fast", "slow"), Some(3.0), "2, 3 and 40 times as fast");
        assert_eq!(comparison.rows[1].share(1), 3.0);
        assert_eq!(comparison.ratio(Load::Stream, "fast", "other"), None);
        assert!(comparison.ratio(Load::RequestResponse, "fast", "slow").unwrap().is_nan());
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
    }
}
