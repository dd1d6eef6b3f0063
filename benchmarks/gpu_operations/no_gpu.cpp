// Preloaded into PyTorch's CUDA build on a machine without a GPU: one device of the compute capability in
// ABSENT_GPU ("86"), so that PyTorch's own code chooses operations as on that GPU. Nothing runs on it.
//
//     c++ -shared -fPIC -o no_gpu.so no_gpu.cpp
//
// Offsets are those of cudaDeviceProp in CUDA 13.

#include <cstddef>
#include <cstdlib>
#include <cstring>

#define SHOWN extern "C" __attribute__((visibility("default")))

static int devices = 0;

static char* properties() {
  static char made[4096];
  static bool done = false;
  if (!done) {
    const char* text = std::getenv("ABSENT_GPU");
    const int capability = text ? std::atoi(text) : 90;
    std::strcpy(made, "GPU");
    *reinterpret_cast<size_t*>(made + 288) = size_t{80} << 30;  // totalGlobalMem
    *reinterpret_cast<size_t*>(made + 296) = 49152;             // sharedMemPerBlock
    *reinterpret_cast<int*>(made + 308) = 32;                   // warpSize
    *reinterpret_cast<int*>(made + 320) = 1024;                 // maxThreadsPerBlock
    *reinterpret_cast<int*>(made + 360) = capability / 10;      // major
    *reinterpret_cast<int*>(made + 364) = capability % 10;      // minor
    done = true;
  }
  return made;
}

// Called once PyTorch's fake tensors have made their own guard of devices.
SHOWN void set_devices(int number) { devices = number; }

// c10::cuda::device_count, device_count_ensure_non_zero, hasPrimaryContext
SHOWN signed char _ZN3c104cuda12device_countEv() noexcept { return static_cast<signed char>(devices); }
SHOWN signed char _ZN3c104cuda28device_count_ensure_non_zeroEv() { return static_cast<signed char>(devices); }
SHOWN bool _ZN3c104cuda17hasPrimaryContextEa(signed char) { return false; }

// at::cuda::getCurrentDeviceProperties, getDeviceProperties
SHOWN void* _ZN2at4cuda26getCurrentDevicePropertiesEv() { return properties(); }
SHOWN void* _ZN2at4cuda19getDevicePropertiesEa(signed char) { return properties(); }
