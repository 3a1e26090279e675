//! What the instructions of x86-64 say of a stack: whether a word can be a return address, and where the
//! frame of a function is that keeps a frame pointer.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Register};

/// A call instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Of the function at this distance from the instruction behind the call.
    Direct(i64),
    /// Of a function that a register or memory names.
    Indirect,
}

/// Length of the longest usual call instruction: `call [rsp+N]`.
pub const CALL_BYTES_MAX: usize = 7;
/// Bytes of a function that [`depth`] may need.
pub const PROLOGUE_BYTES_MAX: usize = 128;

fn decoder(code: &[u8]) -> Decoder<'_> {
    Decoder::with_ip(64, code, 0, DecoderOptions::NONE)
}

/// The call that ends where `code` ends.
pub fn call_before(code: &[u8]) -> Option<Call> {
    (2..=code.len().min(CALL_BYTES_MAX)).find_map(|len| {
        let call = decoder(&code[code.len() - len..]).decode();
        match call.flow_control() {
            _ if call.len() != len => None,
            FlowControl::Call if call.is_call_near() => {
                Some(Call::Direct(call.near_branch_target().cast_signed() - len as i64))
            }
            FlowControl::IndirectCall if call.is_call_near_indirect() => Some(Call::Indirect),
            _ => None,
        }
    })
}

/// How far the stack pointer is below the frame pointer in a function that begins with `push rbp` and `mov
/// rbp, rsp`, by what it does before its first call or jump. None if it begins in another way.
pub fn depth(code: &[u8]) -> Option<u64> {
    // How far it is below where it was at first.
    let mut below = 0_u64;
    let mut frame = None;
    for instruction in decoder(code) {
        if instruction.is_invalid() {
            return None;
        }
        if instruction.flow_control() != FlowControl::Next {
            return below.checked_sub(frame?);
        }
        let (to, from) = (instruction.op0_register(), instruction.op1_register());
        if instruction.is_stack_instruction() {
            below = below.checked_add_signed(-i64::from(instruction.stack_pointer_increment()))?;
        } else if to == Register::RSP {
            // As `sub rsp, N`; other instructions move it to where only they know.
            let is_moved = matches!(instruction.code(), Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32);
            below = below.checked_add(is_moved.then(|| instruction.immediate(1))?)?;
        } else if (to, from) == (Register::RBP, Register::RSP) {
            frame = (below == 8).then_some(8);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_instructions_are_told_from_others() {
        assert_eq!(call_before(&[0x90, 0x90, 0xe8, 1, 0, 0, 0]), Some(Call::Direct(1)));
        assert_eq!(call_before(&[0xe8, 0xf0, 0xff, 0xff, 0xff]), Some(Call::Direct(-16)));
        for call in [
            &[0xff, 0xd0][..],                  // call rax
            &[0x41, 0xff, 0xd4],                // call r12
            &[0xff, 0x50, 0x18],                // call [rax+24]
            &[0xff, 0x54, 0x24, 0x08],          // call [rsp+8]
            &[0xff, 0x14, 0x24],                // call [rsp]
            &[0xff, 0x15, 1, 2, 3, 0],          // call [rip+N]
            &[0xff, 0x94, 0x24, 0x10, 1, 0, 0], // call [rsp+N]
        ] {
            let mut code = vec![0x90; 8];
            code.extend_from_slice(call);
            assert_eq!(call_before(&code), Some(Call::Indirect), "{call:x?}");
        }
        for other in [&[0xff, 0xe0][..], &[0x0f, 0x05], &[0xff, 0x10, 0x18], &[0xc3], &[]] {
            assert_eq!(call_before(other), None, "{other:x?}");
        }
    }

    #[test]
    fn the_depth_of_a_frame_comes_from_its_first_instructions() {
        let begin =
            |rest: &[u8]| depth(&[&[0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5][..], rest].concat());
        // sub rsp, 32; mov edi, 1; call
        assert_eq!(begin(&[0x48, 0x83, 0xec, 0x20, 0xbf, 1, 0, 0, 0, 0xe8, 0, 0, 0, 0]), Some(0x20));
        // push r12; push rbx; sub rsp, 256; ret
        assert_eq!(begin(&[0x41, 0x54, 0x53, 0x48, 0x81, 0xec, 0, 1, 0, 0, 0xc3]), Some(0x110));
        // push rbx; push rax; mov edi, [rdi]; call [rip+N]
        assert_eq!(begin(&[0x53, 0x50, 0x8b, 0x3f, 0xff, 0x15, 0, 0, 0, 0]), Some(0x10));
        // push rbp; mov ecx, edi; mov rbp, rsp; push r13; call
        assert_eq!(depth(&[0x55, 0x89, 0xf9, 0x48, 0x89, 0xe5, 0x41, 0x55, 0xe8, 0, 0, 0, 0]), Some(8));
        // and rsp, -32
        assert_eq!(begin(&[0x48, 0x83, 0xe4, 0xe0, 0xc3]), None);
        // push rbx; sub rsp, 32; ret
        assert_eq!(depth(&[0x53, 0x48, 0x83, 0xec, 0x20, 0xc3]), None);
    }
}
