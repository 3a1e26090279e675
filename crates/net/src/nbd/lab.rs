//! For tests: rules of the NBD client that a test breaks on purpose.

syncline_rules::rules! {
    /// A deliberately broken rule. `lab/sim/tests/nbd` must find each.
    pub enum Canary {
        /// After a reconnect, do not write the changes again that no flush has covered (breaks R6).
        ForgetKept,
        /// Answer a flush that was in flight when the connection broke, without sending it again (breaks
        /// R4: the server may have forgotten the changes that it had to cover).
        AnswerOldFlush,
        /// Take a write that the server made durable for a flush of all that completed before it.
        TrustFua,
        /// Take a write that was in flight when the connection broke for done.
        AnswerOldWrite,
    }
}
