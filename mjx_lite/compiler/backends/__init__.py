"""Back ends of the compiler: LLVM for CPUs, PTX for NVIDIA GPUs."""
