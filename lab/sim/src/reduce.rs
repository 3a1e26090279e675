//! Delta debugging: reproduces a failure with as few pieces as possible.

/// Removes pieces that `fails` does not need to return true, in at most `tries` runs.
/// `fails(pieces)` must be true; it is also true of the result.
pub fn reduce<T: Clone>(pieces: &[T], tries: usize, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut left = pieces.to_vec();
    let (mut parts, mut tries) = (2, tries);
    while left.len() > 1 {
        let size = left.len().div_ceil(parts);
        let mut from = 0;
        let mut cut = false;
        while from < left.len() && tries > 0 {
            let until = (from + size).min(left.len());
            let without: Vec<T> = left[..from].iter().chain(&left[until..]).cloned().collect();
            tries -= 1;
            if fails(&without) {
                left = without;
                cut = true;
            } else {
                from = until;
            }
        }
        if tries == 0 || (size == 1 && !cut) {
            break;
        }
        parts = if size == 1 { left.len() } else { (parts * 2).min(left.len()) };
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_is_left() {
        let pieces: Vec<u32> = (0..1000).collect();
        let mut runs = 0;
        let left = reduce(&pieces, 10_000, |some| {
            runs += 1;
            [17, 400, 401, 999].iter().all(|needed| some.contains(needed))
        });
        assert_eq!(left, [17, 400, 401, 999]);
        assert!(runs < 400, "{runs}");
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let pieces: Vec<u32> = (0..1000).collect();
        let mut runs = 0;
        let left = reduce(&pieces, 10, |some| {
            runs += 1;
            some.contains(&3)
        });
        assert_eq!(runs, 10);
        assert!(left.contains(&3) && left.len() < 1000);
    }
}
